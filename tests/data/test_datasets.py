from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from favorit.data import CARDS, DATASETS, Images, load_dataset, sources
from favorit.data.images import channel_statistics, content_digest, make_dataset
from favorit.errors import FavoritError


def test_digits_need_no_files_and_have_a_fixed_digest() -> None:
    digits = load_dataset("digits")
    assert digits.train.images.shape == (1437, 1, 8, 8)
    assert digits.test.images.shape == (360, 1, 8, 8)
    assert (digits.image_size, digits.channels, digits.validation) == ((8, 8), 1, None)
    assert int(digits.train.images.max()) == 255
    assert torch.bincount(digits.test.labels).min() >= 34
    assert digits.digest == "88ce76325809da8e" + digits.digest[16:]
    assert load_dataset("digits").digest == digits.digest


def test_synthetic_data_follow_their_parameters_and_seed() -> None:
    text = "synthetic(size=12, channels=2, classes=5, train=40, test=11, seed=3)"
    made = load_dataset(text)
    assert made.train.images.shape == (40, 2, 12, 12)
    assert (len(made.test), made.classes[4]) == (11, "class 4")
    assert load_dataset(text).digest == made.digest
    assert load_dataset(text.replace("seed=3", "seed=4")).digest != made.digest


def test_synthetic_data_can_be_learned() -> None:
    made = load_dataset("synthetic(size=16, classes=5, train=500, test=200)")
    train, test = (part.images.flatten(1).float() for part in (made.train, made.test))
    centers = torch.stack([train[made.train.labels == label].mean(0) for label in range(5)])
    found = torch.cdist(test, centers).argmin(1)
    assert (found == made.test.labels).float().mean() > 0.9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digts", "did you mean 'digits'"),
        ("synthetic(sizes=3)", "unknown parameter of synthetic 'sizes'"),
        ("synthetic(classes=1)", "classes=1 is not valid: at least 2"),
        ("synthetic(train=0)", "train=0 is not valid"),
        ("digits(3)", "takes at most 0 values"),
    ],
)
def test_invalid_data_set_is_a_one_line_error(text: str, message: str) -> None:
    with pytest.raises(FavoritError, match=message) as error:
        load_dataset(text)
    assert "\n" not in str(error.value)


def test_every_data_set_has_a_card() -> None:
    assert set(CARDS) == set(DATASETS)
    assert all(card.licence and card.citation for card in CARDS.values())
    assert len(set(CARDS["cifar100"].classes)) == 100


def test_channel_statistics_are_over_all_pixels() -> None:
    images = torch.randint(0, 256, (300, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[:, 2] = 9
    values = images.double() / 255
    mean, std = channel_statistics(images)
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist(), abs=1e-4)
    assert std[:2] == pytest.approx(values.std((0, 2, 3), correction=0)[:2].tolist(), abs=1e-4)
    assert std[2] == 1.0


def test_digest_depends_on_pixels_labels_shape_and_names() -> None:
    images = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    whole = content_digest(["a", "b"], [images])
    assert whole == content_digest(["a", "b"], [images])
    changed = images.images.clone()
    changed[3, 0, 1, 1] = 1
    others = [
        content_digest(["a", "c"], [images]),
        content_digest(["a", "b"], [Images(changed, images.labels)]),
        content_digest(["a", "b"], [Images(images.images, images.labels.flip(0))]),
        content_digest(["a", "b"], [Images(images.images.view(4, 1, 1, 4), images.labels)]),
    ]
    assert len({whole, *others}) == 5


def test_labels_outside_the_classes_are_rejected() -> None:
    images = Images(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 2]))
    about = {"licence": "", "citation": ""}
    with pytest.raises(FavoritError, match=r"x \(test\): image 2 has the label 2, outside 0\.\.1"):
        make_dataset("x", ("a", "b"), Images(images.images[:2], images.labels[:2]), images, **about)
    with pytest.raises(FavoritError, match="the train part has no images"):
        make_dataset("x", ("a", "b"), Images(images.images[:0], images.labels[:0]), images, **about)


def test_images_of_wrong_shape_or_type_are_rejected() -> None:
    with pytest.raises(FavoritError, match="contiguous uint8"):
        Images(torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(FavoritError, match=r"labels must be int64 \(3,\), not"):
        Images(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))


def test_cifar100_is_read_from_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = sources.SOURCES["cifar100"]
    records = np.zeros((200, 3074), np.uint8)
    records[:, 0], records[:, 1] = 19, np.arange(200) % 100
    records[:, 2:] = np.arange(200)[:, None]
    path = tmp_path / "cifar-100-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in source.files:
            entry = tarfile.TarInfo(f"cifar-100-binary/{name}")
            entry.size = records.nbytes
            tar.addfile(entry, io.BytesIO(records.tobytes()))
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    archive = sources.Archive(source.archive.name, digest, source.archive.folder)
    monkeypatch.setitem(sources.SOURCES, "cifar100", replace(source, archive=archive, addresses=()))
    found = load_dataset("cifar100", tmp_path)
    assert found.train.labels.tolist() == [*range(100), *range(100)]
    assert int(found.test.images[7].min()) == int(found.test.images[7].max()) == 7
    assert sources.present("cifar100", tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FavoritError, match=r"cifar-100-binary\.tar\.gz is truncated or damaged"):
        load_dataset("cifar100", tmp_path)


def cifar100_records(order: np.ndarray) -> bytes:
    """Records of 200 images, two of each class, in this order. All pixels of an image equal its index."""
    records = np.zeros((200, 3074), np.uint8)
    records[:, 1], records[:, 2:] = order % 100, order[:, None]
    return records.tobytes()


@pytest.fixture
def by_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with small CIFAR-100 files sorted by class, with known digests and no sources to fetch from."""
    content = cifar100_records(np.argsort(np.arange(200) % 100, kind="stable"))
    files = {name: hashlib.sha256(content).hexdigest() for name in ("train.bin", "test.bin")}
    source = replace(sources.SOURCES["cifar100"], reordered={"cifar100-by-class": files}, addresses=())
    monkeypatch.setitem(sources.SOURCES, "cifar100", source)
    (tmp_path / "cifar100").mkdir()
    for name in files:
        (tmp_path / "cifar100" / name).write_bytes(content)
    return tmp_path


def test_cifar100_sorted_by_class_is_recognized_by_its_digests(by_class: Path) -> None:
    found = load_dataset("cifar100", by_class)
    assert sources.present("cifar100", by_class)
    assert found.name == "cifar100-by-class"
    assert found.train.labels.tolist() == [label for label in range(100) for _ in range(2)]
    assert found.train.images[:4, 0, 0, 0].tolist() == [0, 100, 1, 101]


def test_digest_of_cifar100_sorted_by_class_covers_its_name_and_order(by_class: Path) -> None:
    found = load_dataset("cifar100", by_class)
    parts = [found.train, found.test]
    numbers = torch.arange(200) % 2 * 100 + torch.arange(200) // 2
    order = numbers.argsort()
    reordered = [Images(part.images[order], part.labels[order]) for part in parts]
    digests = [
        content_digest(found.classes, parts, "cifar100-by-class"),
        content_digest(found.classes, parts),
        content_digest(found.classes, reordered),
    ]
    assert found.digest == digests[0]
    assert len(set(digests)) == 3


def test_damaged_cifar100_file_is_a_one_line_error(by_class: Path) -> None:
    path = by_class / "cifar100" / "test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FavoritError, match=r"cifar100/test\.bin is truncated or damaged \(wrong checksum\)") as error:
        load_dataset("cifar100", by_class)
    assert "\n" not in str(error.value)
    assert "train.bin is" not in str(error.value)


def test_cifar100_archive_is_preferred_to_files_sorted_by_class(
    by_class: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = cifar100_records(np.arange(200))
    archive = by_class / "cifar-100-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("train.bin", "test.bin"):
            entry = tarfile.TarInfo(f"cifar-100-binary/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    digest = hashlib.md5(archive.read_bytes()).hexdigest()
    source = sources.SOURCES["cifar100"]
    monkeypatch.setitem(sources.SOURCES, "cifar100", replace(source, archive=replace(source.archive, md5=digest)))
    found = load_dataset("cifar100", by_class)
    assert found.name == "cifar100"
    assert found.train.labels[:3].tolist() == [0, 1, 2]


def test_real_mnist_has_known_shape_labels_and_statistics(real_data: Path) -> None:
    mnist = load_dataset("mnist", real_data)
    assert mnist.train.images.shape == (60000, 1, 28, 28)
    assert mnist.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    mean, std = channel_statistics(mnist.train.images)
    assert (mnist.mean, mnist.std) == (mean, std) == ((0.1307,), (0.3081,))


def test_real_cifar10_has_known_counts_statistics_and_digest(real_data: Path) -> None:
    cifar = load_dataset("cifar10", real_data)
    assert cifar.train.images.shape == (50000, 3, 32, 32)
    assert torch.bincount(cifar.train.labels).tolist() == [5000] * 10
    assert torch.bincount(cifar.test.labels).tolist() == [1000] * 10
    assert [cifar.classes[label] for label in cifar.test.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    mean, std = channel_statistics(cifar.train.images)
    assert cifar.mean == mean
    assert cifar.std == std
    assert cifar.digest.startswith("47843223a11a4057")


def test_real_cifar100_has_the_constants_of_its_card(real_data: Path) -> None:
    cifar = load_dataset("cifar100", real_data)
    assert (cifar.name, cifar.train.images.shape) == ("cifar100-by-class", (50000, 3, 32, 32))
    assert torch.bincount(cifar.train.labels).tolist() == [500] * 100
    assert torch.bincount(cifar.test.labels).tolist() == [100] * 100
    assert [cifar.classes[label] for label in cifar.test.labels[::2000]] == [
        "apple",
        "chair",
        "lamp",
        "plain",
        "squirrel",
    ]
    assert (cifar.mean, cifar.std) == channel_statistics(cifar.train.images)
    assert cifar.digest.startswith("f0de946b6796b9ba")


def test_damaged_file_is_rejected(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for path in (real_data / "mnist").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    images = folder / "t10k-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-1000])
    monkeypatch.setitem(sources.SOURCES, "mnist", replace(sources.SOURCES["mnist"], addresses=(), packages=()))
    with pytest.raises(FavoritError, match=r"t10k-images-idx3-ubyte\.gz: cannot unpack"):
        load_dataset("mnist", tmp_path)
