"""The description of a data set as text: its size, what happens to the shape of its image files, notes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import torch

from favorit.data.fit import FITS, fit_loss
from favorit.data.images import DataSet, ImageFiles
from favorit.data.notes import few_images

CLASSES_LISTED = 10


def describe(dataset: DataSet) -> Iterator[str]:
    """Lines of text about a data set."""
    height, width = dataset.image_size
    parts = [f"{len(dataset.train):,} training"]
    parts += [f"{len(dataset.validation):,} validation"] if dataset.validation else []
    images = f"{', '.join(parts)} and {len(dataset.test):,} test images"
    yield f"{dataset.name}: {len(dataset.classes)} classes, {images} of {height} x {width} x {dataset.channels}"
    yield _class_sizes(dataset)
    if dataset.files is not None:
        yield _fit_line(dataset, dataset.files)
    for note in (*dataset.notes, *few_images(dataset.train.labels, dataset.classes)):
        yield f"note: {note}"


def _class_sizes(dataset: DataSet) -> str:
    """The number of training images of each class, or of the smallest and the largest."""
    counts = torch.bincount(dataset.train.labels, minlength=len(dataset.classes)).tolist()
    pairs = list(zip(counts, dataset.classes, strict=True))
    if len(pairs) <= CLASSES_LISTED:
        return f"training images: {', '.join(f'{name} {count:,}' for count, name in pairs)}"
    (least, smallest), (most, largest) = min(pairs), max(pairs)
    return f"training images of a class: {least:,} ({smallest}) to {most:,} ({largest})"


def _fit_line(dataset: DataSet, files: ImageFiles) -> str:
    """What happens to the shape of the training images."""
    target = dataset.image_size
    side = " x ".join(map(str, target))
    losses = [fit_loss(dataset.fit, size, target) for size in files.sizes]
    cut, border, stretch = zip(*losses, strict=True)

    def largest(values: tuple[float, ...]) -> str:
        worst = max(range(len(values)), key=values.__getitem__)
        height, width = files.sizes[worst]
        return f"{files.train[worst]} ({width} wide, {height} high)"

    found = []
    if max(cut):
        found.append(f"on average {fmean(cut):.0%} of an image is cut off, at most {max(cut):.0%}: {largest(cut)}")
    if max(border):
        found.append(f"black borders fill {fmean(border):.0%} on average, at most {max(border):.0%}: {largest(border)}")
    if max(stretch) > 1:
        found.append(f"images are squeezed, at most by a factor of {max(stretch):.2f}: {largest(stretch)}")
    if not found:
        return f"image files have the aspect ratio of {side}: nothing is cut off, padded or squeezed"
    others = " or ".join(f"{name}({target[0]})" for name in FITS if name != dataset.fit)
    return f"{dataset.fit} to {side}: {'; '.join(found)} (otherwise: data.preprocess={others})"
