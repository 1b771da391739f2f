"""A data set in memory: uint8 tensors, class names, and a digest that identifies the content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from favorit.data.fit import DEFAULT_FIT, Size
from favorit.errors import FavoritError

VALUES_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Images:
    """`images` uint8 (N, C, H, W), contiguous; `labels` int64 (N,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or not self.images.is_contiguous():
            raise FavoritError(
                f"images must be contiguous uint8 (N, C, H, W), not {self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise FavoritError(
                f"labels must be int64 ({len(self.images)},), not {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor) -> Images:
        """The images at these indices."""
        return Images(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class ImageFiles:
    """The files of a data set below the folder `root`, as relative paths in the order of the images.

    `sizes` are the (height, width) of the training images in their files; `skipped` are unreadable files.
    """

    root: Path
    train: tuple[str, ...]
    test: tuple[str, ...]
    sizes: tuple[Size, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class DataSet:
    """A named data set. `mean` and `std` are per channel on the 0..1 scale.

    `validation` is None if the data set has no validation part. `fit` says how image files of another shape get the
    size of the data set, a key of `FITS`. `notes` are messages for a user who trains on it. `files` is None if the
    images are not read from single files.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    licence: str
    citation: str
    digest: str
    validation: Images | None = None
    fit: str = DEFAULT_FIT
    notes: tuple[str, ...] = ()
    files: ImageFiles | None = None

    def __repr__(self) -> str:
        parts = {"training": self.train, "validation": self.validation, "test": self.test}
        counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items() if part is not None)
        height, width = self.image_size
        return (
            f"<DataSet {self.name}: {counts} images of {height}x{width}x{self.channels}, {len(self.classes)} classes>"
        )

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width)."""
        height, width = self.train.images.shape[2:]
        return int(height), int(width)

    @property
    def channels(self) -> int:
        return int(self.train.images.shape[1])


def make_dataset(
    name: str,
    classes: Sequence[str],
    train: Images,
    test: Images,
    *,
    licence: str,
    citation: str,
    validation: Images | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    version: str = "",
) -> DataSet:
    """A DataSet with checked labels and a digest. Mean and std come from the training images unless given.

    `version` names a variant of the published files. It is part of the digest.
    """
    parts = [("train", train), ("test", test)] + ([("validation", validation)] if validation else [])
    for part, images in parts:
        if len(images) == 0:
            raise FavoritError(f"{name}: the {part} part has no images")
        check_labels(images.labels, len(classes), f"{name} ({part})")
    if mean is None or std is None:
        mean, std = channel_statistics(train.images)
    digest = content_digest(classes, [images for _, images in parts], version)
    return DataSet(name, tuple(classes), train, test, mean, std, licence, citation, digest, validation)


def check_labels(labels: Tensor, classes: int, where: str) -> None:
    """Raises an error that names the first label outside 0..classes-1."""
    bad = ((labels < 0) | (labels >= classes)).nonzero()
    if len(bad):
        first = int(bad[0])
        raise FavoritError(
            f"{where}: image {first} has the label {int(labels[first])}, outside 0..{classes - 1}: the file is damaged"
        )


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, standard deviation) of each channel over all pixels, on the 0..1 scale; std is 1 if it is below 1e-3."""
    channels = images.shape[1]
    total, squares = torch.zeros(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
    for chunk in images.split(max(1, VALUES_AT_ONCE // images[0].numel())):
        values = chunk.flatten(2).float().div_(255)
        # Sums within an image in float32, over images in float64: accurate enough at a fifth of the cost.
        total += values.sum(2).double().sum(0)
        squares += values.square_().sum(2).double().sum(0)
    mean = total * channels / images.numel()
    std = (squares * channels / images.numel() - mean.square()).clamp(min=0).sqrt()
    std[std < 1e-3] = 1.0
    return tuple(round(value, 4) for value in mean.tolist()), tuple(round(value, 4) for value in std.tolist())


def content_digest(classes: Sequence[str], parts: Sequence[Images], version: str = "") -> str:
    """sha256 over the class names, the version and, for each part, shape, pixels and labels. Paths do not matter."""
    digest = hashlib.sha256("\n".join(classes).encode())
    if version:
        digest.update(f"\0{version}".encode())
    for part in parts:
        digest.update(str(tuple(part.images.shape)).encode())
        digest.update(part.images.numpy().data)
        digest.update(part.labels.numpy().data)
    return digest.hexdigest()
