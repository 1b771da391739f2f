from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from favorit.data import load_dataset, read_image
from favorit.errors import FavoritError


def fill(folder: Path, classes: Sequence[str] = ("cat", "dog"), count: int = 10, suffix: str = "png") -> Path:
    """Writes `count` small images for each class, in many sizes; the color encodes the class."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((5 + number, 9, 3), 40 + 60 * label, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.{suffix}")
    return folder


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "webp", "bmp", "gif", "tif"])
def test_class_folders_load_with_a_stratified_test_part(tmp_path: Path, suffix: str) -> None:
    fill(tmp_path / "pets", suffix=suffix)
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "pets" / ".hidden").mkdir()
    pets = load_dataset(f"folder:{tmp_path / 'pets'}")
    assert pets.classes == ("cat", "dog")
    assert pets.train.images.shape == (16, 3, 64, 64)
    assert torch.bincount(pets.test.labels).tolist() == [2, 2]
    assert pets.train.images.float().mean((1, 2, 3)).sub(40 + 60 * pets.train.labels).abs().max() < 3
    assert load_dataset(f"folder:{tmp_path / 'pets'}").digest == pets.digest


def test_image_size_resizes_and_path_does_not_change_the_digest(tmp_path: Path) -> None:
    first, second = fill(tmp_path / "a"), fill(tmp_path / "b")
    sets = [load_dataset(f"folder({str(path)!r}, image_size=20)") for path in (first, second)]
    assert sets[0].train.images.shape[2:] == (20, 20)
    assert sets[0].digest == sets[1].digest


def test_train_val_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("val", 3), ("test", 4)):
        fill(tmp_path / part, count=count)
    found = load_dataset(f"folder:{tmp_path}")
    assert found.validation is not None
    assert (len(found.train), len(found.validation), len(found.test)) == (12, 6, 8)


def test_class_may_be_named_train(tmp_path: Path) -> None:
    fill(tmp_path, ("plane", "train"))
    assert load_dataset(f"folder:{tmp_path}").classes == ("plane", "train")


def test_without_a_test_folder_some_training_images_are_held_out(tmp_path: Path) -> None:
    fill(tmp_path / "train")
    fill(tmp_path / "val", count=1)
    found = load_dataset(f"folder:{tmp_path}")
    assert (len(found.train), len(found.test)) == (16, 4)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "cat" / "bad.png").write_bytes(b"not a picture")
    whole = (tmp_path / "dog" / "1.png").read_bytes()
    (tmp_path / "dog" / "half.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        FavoritError, match=r"2 of 22 images cannot be read: cat/bad\.png, dog/half\.png: repair or remove them"
    ):
        load_dataset(f"folder:{tmp_path}")


@pytest.mark.parametrize(("classes", "message"), [((), "no images"), (("cat",), "only the class 'cat'")])
def test_fewer_than_two_classes_are_rejected(tmp_path: Path, classes: Sequence[str], message: str) -> None:
    fill(tmp_path, classes)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FavoritError, match=message):
        load_dataset(f"folder:{tmp_path}")


@pytest.mark.parametrize("whole", ["", "train"])
def test_class_folder_without_images_is_rejected(tmp_path: Path, whole: str) -> None:
    fill(tmp_path / whole)
    (tmp_path / whole / "emu").mkdir()
    (tmp_path / whole / "emu" / "1.heic").write_bytes(b"a photograph")
    with pytest.raises(FavoritError, match=r"emu: no \.png .* files in this class folder: add images or remove it"):
        load_dataset(f"folder:{tmp_path}")


def test_missing_small_and_mismatched_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(FavoritError, match="folder not found"):
        load_dataset(f"folder:{tmp_path / 'nowhere'}")
    fill(tmp_path / "few", count=1)
    with pytest.raises(
        FavoritError,
        match="the classes 'cat', 'dog' with one image cannot be in both the training and the test part: add",
    ):
        load_dataset(f"folder:{tmp_path / 'few'}")
    fill(tmp_path / "more" / "train")
    fill(tmp_path / "more" / "test", ("cat", "fox"))
    with pytest.raises(FavoritError, match="the classes fox have no training images"):
        load_dataset(f"folder:{tmp_path / 'more'}")


def test_images_of_any_mode_are_read(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    palette = Image.fromarray(pixels).convert("P")
    palette.info["transparency"] = bytes(range(256))
    variants = [Image.fromarray(pixels).convert(mode) for mode in ("L", "RGB", "RGBA", "1", "CMYK")]
    for number, image in enumerate([*variants, palette]):
        path = tmp_path / f"{number}.{'jpg' if image.mode == 'CMYK' else 'png'}"
        image.save(path)
        assert read_image(path, (6, 5)).shape == (3, 6, 5)
        assert read_image(path, (6, 5), channels=1).shape == (1, 6, 5)
    path = tmp_path / "same.png"
    Image.fromarray(pixels).save(path)
    assert torch.equal(read_image(path, (9, 7)), torch.from_numpy(pixels).permute(2, 0, 1))
    with pytest.raises(FavoritError, match="file not found"):
        read_image(tmp_path / "none.png", (6, 5))


def test_16_bit_images_are_scaled_and_32_bit_images_rejected(tmp_path: Path) -> None:
    """PIL's own conversion would clip values above 255."""
    levels = np.array([[0, 300, 128 * 257, 65535]], np.uint16)
    Image.fromarray(levels).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png", (1, 4), channels=1).tolist() == [[[0, 1, 128, 255]]]
    assert read_image(tmp_path / "deep.png", (1, 4))[2].tolist() == [[0, 1, 128, 255]]
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(FavoritError, match=r"float.tiff: cannot be read as an image \(32-bit pixels, PIL mode F"):
        read_image(tmp_path / "float.tiff", (2, 2))


def test_damaged_exif_data_is_named_as_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PIL raises struct.error for damaged EXIF data, not one of PIL's errors."""

    def damaged(image: Image.Image) -> Image.Image:
        raise struct.error("unpack requires a buffer of 2 bytes")

    monkeypatch.setattr(ImageOps, "exif_transpose", damaged)
    Image.new("RGB", (2, 2)).save(tmp_path / "a.jpg")
    with pytest.raises(FavoritError, match=r"a.jpg: cannot be read as an image \(unpack"):
        read_image(tmp_path / "a.jpg", (2, 2))


def test_broken_link_is_named(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nothing.png")
    with pytest.raises(FavoritError, match=r"1 of 21 images cannot be read: cat/gone.png"):
        load_dataset(f"folder:{tmp_path}")


def test_unknown_part_next_to_train_is_rejected(tmp_path: Path) -> None:
    for part in ("train", "valid"):
        fill(tmp_path / part)
    (tmp_path / "notes").mkdir()
    with pytest.raises(FavoritError, match="valid: not a known part: rename it to val or test"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "valid").rename(tmp_path / "val")
    validation = load_dataset(f"folder:{tmp_path}").validation
    assert validation is not None
    assert len(validation) == 20


@pytest.mark.parametrize(
    ("sizes", "side"),
    [([(20, 20)], 20), ([(128, 128)], 128), ([(20, 20), (21, 21)], 64), ([(20, 22)], 64), ([(129, 129)], 64)],
)
def test_default_size_is_kept_for_squares_of_one_size_up_to_128_else_64(
    tmp_path: Path, sizes: list[tuple[int, int]], side: int
) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(10):
            Image.new("RGB", sizes[number % len(sizes)]).save(tmp_path / label / f"{number}.png")
    assert load_dataset(f"folder:{tmp_path}").image_size == (side, side)
    assert load_dataset(f"folder({str(tmp_path)!r}, image_size=16)").image_size == (16, 16)
