"""The data sets by name, each read into memory as uint8.

digits   mnist   fashion_mnist   cifar10   cifar100   synthetic(size=32, classes=10, ...)   folder:PATH   folder('PATH',
96)
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from favorit import seeds
from favorit.data.folder import load_folder
from favorit.data.formats import cifar_images, idx_images
from favorit.data.images import DataSet, Images, make_dataset
from favorit.data.names import CIFAR10_CLASSES, CIFAR100_CLASSES, DIGITS, FASHION_CLASSES
from favorit.data.sources import fetch, fetch_named
from favorit.data.splits import split
from favorit.errors import FavoritError
from favorit.spec import NonNegativeInt, PositiveInt, Registry, Spec, parse

DataDir = str | os.PathLike[str] | None

DATASETS: Registry[DataSet] = Registry("data set", context=("data_dir",))


@dataclass(frozen=True)
class Card:
    """What is known of a data set before it is loaded; `mean` and `std` where everyone uses the same constants."""

    classes: tuple[str, ...]
    shape: str
    images: str
    licence: str
    citation: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


CARDS: dict[str, Card] = {
    "digits": Card(
        DIGITS,
        "8x8x1",
        "1,437 + 360",
        "CC BY 4.0",
        "Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI 1998",
    ),
    "mnist": Card(
        DIGITS,
        "28x28x1",
        "60k + 10k",
        "CC BY-SA 3.0",
        "LeCun, Bottou, Bengio & Haffner, Gradient-based learning applied to document recognition, 1998",
        (0.1307,),
        (0.3081,),
    ),
    "fashion_mnist": Card(
        FASHION_CLASSES,
        "28x28x1",
        "60k + 10k",
        "MIT",
        "Xiao, Rasul & Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms, 2017",
    ),
    "cifar10": Card(
        CIFAR10_CLASSES,
        "32x32x3",
        "50k + 10k",
        "none stated",
        "Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Card(
        CIFAR100_CLASSES,
        "32x32x3",
        "50k + 10k",
        "none stated",
        "Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
    ),
    "synthetic": Card((), "any", "any", "CC0 1.0", "made by favorit"),
    "folder": Card((), "any", "any", "yours", "yours"),
}


def load_dataset(text: str, data_dir: DataDir = None) -> DataSet:
    """The data set that a text names; its files are fetched into the data directory if they are not there."""
    return DATASETS.build(_spec(text), data_dir=data_dir)


def located(text: str) -> str:
    """The same data set by a name that holds in every working directory: a path becomes absolute."""
    spec = _spec(text)
    values = DATASETS[spec.name].resolve(spec)
    return (
        str(Spec(spec.name, (), {**values, "path": os.path.abspath(os.path.expanduser(values["path"]))}))
        if "path" in values
        else text
    )


def _spec(text: str) -> Spec:
    """`folder:PATH` is short for folder('PATH')."""
    if isinstance(text, str) and text.startswith("folder:"):
        return Spec("folder", (text.removeprefix("folder:"),))
    return parse(text)


def describe_dataset(name: str) -> DataSet:
    """What is known of a published data set before its files are there: everything but images and digest."""
    card = CARDS[name]
    height, width, channels = (int(part) for part in card.shape.split("x"))
    none = Images(torch.empty((0, channels, height, width), dtype=torch.uint8), torch.empty(0, dtype=torch.int64))
    mean, std = card.mean or (0.5,) * channels, card.std or (0.5,) * channels
    return DataSet(name, card.classes, none, none, mean, std, card.licence, card.citation, digest="")


def _with_card(name: str, train: Images, test: Images, version: str = "") -> DataSet:
    card = CARDS[name]
    return make_dataset(
        version or name,
        card.classes,
        train,
        test,
        licence=card.licence,
        citation=card.citation,
        mean=card.mean,
        std=card.std,
        version=version,
    )


@DATASETS.register("digits")
def digits() -> DataSet:
    """1,797 handwritten digits of 8x8 that come with scikit-learn: needs no download."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))[:, None].contiguous()
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    train, test = split(labels, seed=0, validation=360)
    return _with_card("digits", Images(pixels[train], labels[train]), Images(pixels[test], labels[test]))


def _idx_set(name: str, data_dir: DataDir) -> DataSet:
    files, classes = fetch(name, data_dir), len(CARDS[name].classes)
    train = idx_images(files["train-images-idx3-ubyte"], files["train-labels-idx1-ubyte"], classes, f"{name} (train)")
    test = idx_images(files["t10k-images-idx3-ubyte"], files["t10k-labels-idx1-ubyte"], classes, f"{name} (test)")
    return _with_card(name, train, test)


@DATASETS.register("mnist")
def mnist(data_dir: DataDir = None) -> DataSet:
    """Handwritten digits, 28x28 grey."""
    return _idx_set("mnist", data_dir)


@DATASETS.register("fashion_mnist")
def fashion_mnist(data_dir: DataDir = None) -> DataSet:
    """Articles of clothing, 28x28 grey."""
    return _idx_set("fashion_mnist", data_dir)


@DATASETS.register("cifar10")
def cifar10(data_dir: DataDir = None) -> DataSet:
    """Photographs of ten classes, 32x32 RGB."""
    files = fetch("cifar10", data_dir)
    batches = [files[f"data_batch_{number}.bin"] for number in range(1, 6)]
    train = cifar_images(batches, 10, "cifar10 (train)")
    return _with_card("cifar10", train, cifar_images([files["test_batch.bin"]], 10, "cifar10 (test)"))


@DATASETS.register("cifar100")
def cifar100(data_dir: DataDir = None) -> DataSet:
    """Photographs of a hundred classes, 32x32 RGB; the fine labels.

    Files sorted by class are the data set `cifar100-by-class`: the order of the images decides splits and batches.
    """
    found, files = fetch_named("cifar100", data_dir)
    train, test = (
        cifar_images([files[f"{part}.bin"]], 100, f"cifar100 ({part})", label_bytes=2) for part in ("train", "test")
    )
    return _with_card("cifar100", train, test, version="" if found == "cifar100" else found)


@DATASETS.register("synthetic")
def synthetic(
    size: PositiveInt = 32,
    channels: PositiveInt = 3,
    classes: PositiveInt = 10,
    train: PositiveInt = 2000,
    test: PositiveInt = 500,
    seed: NonNegativeInt = 0,
) -> DataSet:
    """Smooth class-dependent patterns under noise, in any size: for timing and tests."""
    if classes < 2:
        raise FavoritError(f"synthetic: classes={classes}: two or more")
    patterns = torch.rand(classes, channels, 4, 4, generator=seeds.generator(seed, "synthetic", "patterns"))
    parts = [_synthetic_part(patterns, size, count, seed, part) for part, count in (("train", train), ("test", test))]
    names = [f"class {number}" for number in range(classes)]
    about = CARDS["synthetic"]
    return make_dataset("synthetic", names, *parts, licence=about.licence, citation=about.citation)


def _synthetic_part(patterns: Tensor, size: int, count: int, seed: int, part: str) -> Images:
    """`count` images: 0.3 x the pattern of the class + 0.7 x uniform noise, the classes in turn."""
    generator = seeds.generator(seed, "synthetic", part)
    labels = torch.arange(count) % len(patterns)
    shape = (patterns.shape[1], size, size)
    images = torch.empty((count, *shape), dtype=torch.uint8)
    for chunk, numbers in zip(images.split(256), labels.split(256), strict=True):
        smooth = torch.nn.functional.interpolate(patterns[numbers], (size, size), mode="bilinear", align_corners=False)
        noise = torch.randint(0, 256, (len(numbers), *shape), dtype=torch.uint8, generator=generator)
        chunk.copy_(smooth.mul_(0.3 * 255).add_(noise, alpha=0.7))
    return Images(images, labels)


@DATASETS.register("folder")
def folder(path: str, image_size: PositiveInt | None = None, seed: NonNegativeInt = 0) -> DataSet:
    """Your own images: PATH/class/*.png, jpg, webp, bmp, gif or tif, or the same in PATH/train, PATH/val and PATH/test.

    Squares of one size up to 128 keep it; others become squares of 64, or of `image_size`.
    """
    return load_folder(path, image_size, seed)
