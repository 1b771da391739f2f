"""Which training images are trained on and which validate: stratified, and a function of the seed alone.

whole training part  ->  subset (optional)  ->  validation fraction or count, or fold k of n  |  the rest trains
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from favorit import seeds
from favorit.errors import FavoritError

Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def split(
    labels: Tensor,
    *,
    seed: int,
    validation: float | int = 0,
    folds: int | None = None,
    fold: int | None = None,
    subset: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(train, validation) positions in `labels`, each int64 and ascending; together they are the whole (or the subset)
    exactly.

    `validation` is a fraction below 1 or a count, 0 for none. `folds` with `fold` in 0..folds-1 takes that part of a
    stratified partition instead. `subset` images are chosen first, in the proportions of the classes.
    """
    numbers = labels.numpy()
    kept: Positions = np.arange(len(numbers))
    if subset is not None:
        if isinstance(subset, bool) or not isinstance(subset, int) or not 1 <= subset <= len(kept):
            raise FavoritError(f"subset={subset}: a count in 1..{len(kept)}, the number of training images")
        kept = _subset(numbers, subset, seed)
    if folds is not None or fold is not None:
        train, held = _fold(numbers, kept, seed, folds, fold)
    else:
        train, held = _divide(numbers, kept, _count(validation, len(kept)), seed, "validation")
    return torch.from_numpy(train), torch.from_numpy(held)


def _subset(labels: Positions, size: int, seed: int) -> Positions:
    """`size` of all positions, stratified."""
    whole: Positions = np.arange(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    spare = len(labels) - size
    if not 0 < spare < len(classes):
        return _divide(labels, whole, spare, seed, "subset")[0]
    # So few are left out that not every class can lose one: the largest classes do.
    source = np.random.default_rng(seeds.derive(seed, "split", "subset"))
    largest = classes[np.argsort(-counts, kind="stable")[:spare]]
    return np.setdiff1d(whole, [source.choice(np.flatnonzero(labels == name)) for name in largest])


def _count(validation: float | int, total: int) -> int:
    """The number of validation images that a fraction or a count stands for."""
    if isinstance(validation, bool) or not isinstance(validation, (int, float)) or not 0 <= validation < total:
        raise FavoritError(
            f"validation={validation}: a fraction below 1, or a count below the {total} images there are"
        )
    if isinstance(validation, float) and validation >= 1:
        raise FavoritError(f"validation={validation}: a fraction is below 1; for a count write {round(validation)}")
    if isinstance(validation, int):
        return validation
    count = round(validation * total)
    if validation > 0 and count == 0:
        raise FavoritError(f"validation={validation}: less than one of {total} images")
    return count


def _divide(
    labels: Positions, positions: Positions, aside: int, seed: int, purpose: str
) -> tuple[Positions, Positions]:
    """(kept, set aside), stratified; `aside` images are set aside."""
    if aside == 0:
        return positions, positions[:0]
    from sklearn.model_selection import train_test_split

    _, counts = np.unique(labels[positions], return_counts=True)
    if counts.min() < 2:
        raise FavoritError(f"{purpose}: a class with one image cannot be split; add images or leave the class out")
    rest = len(positions) - aside
    if min(aside, rest) < len(counts):
        few = (
            f"{aside} of {len(positions)} images"
            if aside <= rest
            else f"the {rest} of {len(positions)} images that are left"
        )
        raise FavoritError(f"{purpose}: {few} cannot hold each of {len(counts)} classes")
    state = seeds.derive(seed, "split", purpose) % 2**32
    kept, held = train_test_split(positions, test_size=aside, random_state=state, stratify=labels[positions])
    return np.sort(kept), np.sort(held)


def _fold(
    labels: Positions, positions: Positions, seed: int, folds: int | None, fold: int | None
) -> tuple[Positions, Positions]:
    """(the other folds, fold number `fold`) of a stratified partition."""
    if folds is None or fold is None:
        raise FavoritError(f"folds={folds}, fold={fold}: give both, the number of folds and the one to validate on")
    if folds < 2 or not 0 <= fold < folds:
        raise FavoritError(f"folds={folds}, fold={fold}: two folds or more, and a fold in 0..folds-1")
    from sklearn.model_selection import StratifiedKFold

    _, counts = np.unique(labels[positions], return_counts=True)
    if counts.min() < folds:
        raise FavoritError(
            f"folds={folds}: the smallest class has {counts.min()} images; each fold needs one of every class"
        )
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seeds.derive(seed, "split", "folds") % 2**32)
    train, held = list(splitter.split(positions, labels[positions]))[fold]
    return positions[train], positions[held]
