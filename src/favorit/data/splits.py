"""The split of training images into training and validation: stratified, determined by labels and seed.

training part  ->  optional subset  ->  validation (fraction, count, or fold k of n)  |  training (the rest)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from favorit import seeds
from favorit.errors import FavoritError

TEST_FRACTION = 0.2

Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def split(
    labels: Tensor,
    *,
    seed: int,
    validation: float | int = 0,
    folds: int | None = None,
    fold: int | None = None,
    subset: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(train, validation) indices into `labels`, int64 and ascending. Together they cover all images, or the subset.

    `validation` is a fraction below 1 or a count, 0 for none. With `folds`, the validation part is
    fold number `fold` (0..folds-1) of a stratified partition instead. `subset` images are chosen first, in proportion
    to the classes.
    """
    numbers = labels.numpy()
    kept: Indices = np.arange(len(numbers))
    if subset is not None:
        if isinstance(subset, bool) or not isinstance(subset, int) or not 1 <= subset <= len(kept):
            raise FavoritError(f"subset={subset} is not valid: a count in 1..{len(kept)}, the number of images")
        kept = _subset(numbers, subset, seed)
    if folds is not None or fold is not None:
        train, held_out = _fold(numbers, kept, seed, folds, fold)
    else:
        train, held_out = _divide(numbers, kept, _count(validation, len(kept)), seed, "validation")
    return torch.from_numpy(train), torch.from_numpy(held_out)


def hold_out_test(labels: Tensor, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """(train, test) indices for data without a test part: a stratified fifth, at least one image of each class."""
    count = max(classes, round(TEST_FRACTION * len(labels)))
    if len(labels) - count < classes:
        raise FavoritError(f"{len(labels)} images of {classes} classes are too few to hold out a test set")
    return split(labels, seed=seed, validation=count)


def _subset(labels: Indices, size: int, seed: int) -> Indices:
    """A stratified choice of `size` indices."""
    whole: Indices = np.arange(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    spare = len(labels) - size
    if not 0 < spare < len(classes):
        return _divide(labels, whole, spare, seed, "subset")[0]
    # Fewer images are left out than there are classes: leave out one of each of the largest classes.
    source = np.random.default_rng(seeds.derive(seed, "split", "subset"))
    largest = classes[np.argsort(-counts, kind="stable")[:spare]]
    return np.setdiff1d(whole, [source.choice(np.flatnonzero(labels == name)) for name in largest])


def _count(validation: float | int, total: int) -> int:
    """The number of validation images for a fraction or a count."""
    if isinstance(validation, bool) or not isinstance(validation, (int, float)) or not 0 <= validation < total:
        raise FavoritError(
            f"validation={validation} is not valid: a fraction below 1, or a count below the {total} images"
        )
    if isinstance(validation, float) and validation >= 1:
        raise FavoritError(
            f"validation={validation} is not valid: a fraction is below 1; for a count write {round(validation)}"
        )
    if isinstance(validation, int):
        return validation
    count = round(validation * total)
    if validation > 0 and count == 0:
        raise FavoritError(f"validation={validation} is not valid: less than one of {total} images")
    return count


def _divide(labels: Indices, indices: Indices, count: int, seed: int, purpose: str) -> tuple[Indices, Indices]:
    """(kept, held out), stratified; `count` images are held out."""
    if count == 0:
        return indices, indices[:0]
    from sklearn.model_selection import train_test_split

    _, counts = np.unique(labels[indices], return_counts=True)
    if counts.min() < 2:
        raise FavoritError(f"{purpose}: a class with one image cannot be split: add images or remove the class")
    rest = len(indices) - count
    if min(count, rest) < len(counts):
        few = (
            f"{count} of {len(indices)} images"
            if count <= rest
            else f"the {rest} of {len(indices)} images that are left"
        )
        raise FavoritError(f"{purpose}: {few} are fewer than the {len(counts)} classes")
    state = seeds.derive(seed, "split", purpose) % 2**32
    kept, held_out = train_test_split(indices, test_size=count, random_state=state, stratify=labels[indices])
    return np.sort(kept), np.sort(held_out)


def _fold(labels: Indices, indices: Indices, seed: int, folds: int | None, fold: int | None) -> tuple[Indices, Indices]:
    """(the other folds, fold `fold`) of a stratified partition."""
    if folds is None or fold is None:
        raise FavoritError(
            f"folds={folds}, fold={fold} is not valid: give both, the number of folds and the fold to validate on"
        )
    if folds < 2 or not 0 <= fold < folds:
        raise FavoritError(f"folds={folds}, fold={fold} is not valid: at least 2 folds, and a fold in 0..folds-1")
    from sklearn.model_selection import StratifiedKFold

    _, counts = np.unique(labels[indices], return_counts=True)
    if counts.min() < folds:
        raise FavoritError(
            f"folds={folds} is not valid: the smallest class has only {counts.min()} images, fewer than one per fold"
        )
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seeds.derive(seed, "split", "folds") % 2**32)
    train, held_out = list(splitter.split(indices, labels[indices]))[fold]
    return indices[train], indices[held_out]
