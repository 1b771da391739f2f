"""The split of training images into training and validation: stratified, determined by labels and seed.

training part  ->  optional subset  ->  validation (fraction, count, or fold k of n)  |  training (the rest)

Every part has every class. A class with too few images for that is an error that names it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    classes: Sequence[str] = (),
    every_class: bool = True,
) -> tuple[Tensor, Tensor]:
    """(train, validation) indices into `labels`, int64 and ascending. Together they cover all images, or the subset.

    `validation` is a fraction below 1 or a count, 0 for none. With `folds`, the validation part is
    fold number `fold` (0..folds-1) of a stratified partition instead. `subset` images are chosen first, in proportion
    to the classes. Errors name a class as in `classes`. With `every_class=False`, a part may lack a small class.
    """
    numbers = labels.numpy()
    kept: Indices = np.arange(len(numbers))
    if subset is not None:
        if isinstance(subset, bool) or not isinstance(subset, int) or not 1 <= subset <= len(kept):
            raise FavoritError(f"subset={subset} is not valid: a count in 1..{len(kept)}, the number of images")
        kept = _subset(numbers, subset, seed)
    if folds is not None or fold is not None:
        train, held_out = _fold(numbers, kept, seed, folds, fold, classes)
    elif count := _count(validation, len(kept)):
        _check_sizes(numbers[kept], count, classes)
        train, held_out = _divide(numbers, kept, count, seed, "validation")
        if every_class:
            source = np.random.default_rng(seeds.derive(seed, "split", "small classes"))
            held_out, train = _with_every_class(numbers, held_out, train, source)
            train, held_out = _with_every_class(numbers, train, held_out, source)
    else:
        train, held_out = kept, kept[:0]
    return torch.from_numpy(train), torch.from_numpy(held_out)


def hold_out_test(labels: Tensor, classes: int, seed: int, every_class: bool = True) -> tuple[Tensor, Tensor]:
    """(train, test) indices for data without a test part: a stratified fifth, at least one image of each class."""
    count = max(classes, round(TEST_FRACTION * len(labels)))
    if len(labels) - count < classes:
        raise FavoritError(f"{len(labels)} images of {classes} classes are too few to hold out a test set")
    return split(labels, seed=seed, validation=count, every_class=every_class)


def _name(classes: Sequence[str], number: int) -> str:
    """The class in a message: its name if names are known, else its number."""
    return repr(classes[number]) if classes else str(number)


def _subset(labels: Indices, size: int, seed: int) -> Indices:
    """A stratified choice of `size` indices, with every class if `size` is at least the number of classes."""
    whole: Indices = np.arange(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    if size == len(labels):
        return whole
    source = np.random.default_rng(seeds.derive(seed, "split", "subset"))
    if size < len(classes):
        raise FavoritError(f"subset: {size} of {len(labels)} images are fewer than the {len(classes)} classes")
    # Classes with one image cannot be divided: the subset keeps them.
    single = np.isin(labels, classes[counts == 1])
    divided, spare = np.flatnonzero(~single), len(labels) - size
    classes, counts = np.unique(labels[divided], return_counts=True)
    if spare < len(classes):
        # Leave out one image of each of the largest classes.
        largest = classes[np.argsort(-counts, kind="stable")[:spare]]
        return np.setdiff1d(whole, [source.choice(np.flatnonzero(labels == name)) for name in largest])
    kept, left_out = _divide(labels, divided, spare, seed, "subset")
    kept, _ = _with_every_class(labels, kept, left_out, source)
    return np.sort(np.concatenate([kept, np.flatnonzero(single)]))


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


def _check_sizes(labels: Indices, count: int, names: Sequence[str]) -> None:
    """Raises an error if `count` images cannot be held out so that both parts have every class."""
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < 2:
        smallest = _name(names, int(classes[counts.argmin()]))
        fix = "add images, remove the class, or set data.validation=0 and train.select=last"
        raise FavoritError(
            f"validation: the class {smallest} has one training image, which cannot be in validation too: {fix}"
        )
    rest = len(labels) - count
    if min(count, rest) < len(counts):
        least, most = len(counts), len(labels) - len(counts)
        few = f"{count} of {len(labels)} images" if count < least else f"the {rest} of {len(labels)} that are left"
        raise FavoritError(
            f"validation: {few} are fewer than the {least} classes: set data.validation to a count in {least}..{most}"
        )


def _divide(labels: Indices, indices: Indices, count: int, seed: int, purpose: str) -> tuple[Indices, Indices]:
    """(kept, held out), stratified; `count` images are held out. A small class may be in one part only."""
    from sklearn.model_selection import train_test_split

    state = seeds.derive(seed, "split", purpose) % 2**32
    kept, held_out = train_test_split(indices, test_size=count, random_state=state, stratify=labels[indices])
    return np.sort(kept), np.sort(held_out)


def _with_every_class(
    labels: Indices, part: Indices, other: Indices, source: np.random.Generator
) -> tuple[Indices, Indices]:
    """(part, other) after swaps: `part` gets an image of each class that it lacks, for one of the class that is most
    above its share.
    """
    both = labels[np.concatenate([part, other])]
    share = np.bincount(both) * (len(part) / len(both))
    for missing in np.setdiff1d(labels[other], labels[part]):
        counts = np.bincount(labels[part], minlength=len(share))
        surplus = np.where(counts > 1, counts - share, -np.inf)
        given = source.choice(part[labels[part] == surplus.argmax()])
        taken = source.choice(other[labels[other] == missing])
        part = np.sort(np.append(part[part != given], taken))
        other = np.sort(np.append(other[other != taken], given))
    return part, other


def _fold(
    labels: Indices, indices: Indices, seed: int, folds: int | None, fold: int | None, names: Sequence[str]
) -> tuple[Indices, Indices]:
    """(the other folds, fold `fold`) of a stratified partition."""
    if folds is None or fold is None:
        raise FavoritError(
            f"folds={folds}, fold={fold} is not valid: give both, the number of folds and the fold to validate on"
        )
    if folds < 2 or not 0 <= fold < folds:
        raise FavoritError(f"folds={folds}, fold={fold} is not valid: at least 2 folds, and a fold in 0..folds-1")
    from sklearn.model_selection import StratifiedKFold

    classes, counts = np.unique(labels[indices], return_counts=True)
    if counts.min() < folds:
        smallest = f"the smallest class, {_name(names, int(classes[counts.argmin()]))}, has only {counts.min()} images"
        raise FavoritError(
            f"folds={folds} is not valid: {smallest}, fewer than one per fold: add images, or use fewer folds"
        )
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seeds.derive(seed, "split", "folds") % 2**32)
    train, held_out = list(splitter.split(indices, labels[indices]))[fold]
    return indices[train], indices[held_out]
