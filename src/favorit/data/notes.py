"""What a user should know about a data set before training: skipped files, copies, classes that are too small."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from favorit.data.image_files import named
from favorit.data.images import Images

# Below this number of training images in a class, results depend much on the split and the seed.
FEW_IMAGES = 20


def image_digests(images: Tensor) -> list[str]:
    """16 hex digits of sha256 for each image of uint8 (N, C, H, W)."""
    return [hashlib.sha256(row).hexdigest()[:16] for row in images.flatten(1).numpy()]


def folder_notes(
    classes: Sequence[str], parts: Mapping[str, tuple[Sequence[str], Images]], skipped: Sequence[str]
) -> Iterator[str]:
    """Notes on a folder, given the files and images of each part."""
    if skipped:
        yield f"skipped {len(skipped)} unreadable file{'s' if len(skipped) > 1 else ''}: {named(skipped)}"
    train_files, train = parts["train"]
    known = dict(zip(image_digests(train.images), train_files, strict=True))
    for part, (files, images) in parts.items():
        if part == "train":
            continue
        if part == "test":
            counts = torch.bincount(images.labels, minlength=len(classes)).tolist()
            if untested := [name for name, count in zip(classes, counts, strict=True) if not count]:
                yield f"no test images of {named(untested)}: the accuracy says nothing about them"
        digests = image_digests(images.images)
        copies = [(file, known[digest]) for file, digest in zip(files, digests, strict=True) if digest in known]
        if copies:
            yield (
                f"{len(copies)} of {len(files)} {part} images have the same content as training images, such as "
                f"{copies[0][0]} and {copies[0][1]}: accuracy on them is too high; remove the copies"
            )


def few_images(labels: Tensor, classes: Sequence[str]) -> Iterator[str]:
    """A note for training images with these labels if the smallest class has fewer than FEW_IMAGES."""
    counts = torch.bincount(labels, minlength=len(classes))
    smallest = int(counts.argmin())
    if counts[smallest] < FEW_IMAGES:
        yield (
            f"few images per class: the smallest, {classes[smallest]!r}, has {int(counts[smallest])} for training, so "
            "results depend much on the split and the seed: add images, or take the mean of --folds 5 or several seeds"
        )
