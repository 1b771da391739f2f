"""The data loaders of a run: which images train, validate and test."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from favorit.config import RunConfig
from favorit.data import Augment, DataSet, Images, Loader, build_augment, build_preprocess, split
from favorit.errors import FavoritError

VALIDATION_BATCH = 500


@dataclass(frozen=True)
class Loaders:
    """The data loaders of a run, and the labels of its training images. `validation` is None if no images are held out.

    `plain_test` loads the test images without augmentation if `test` augments them, else it is None.
    """

    training: Loader
    validation: Loader | None
    test: Loader
    labels: Tensor
    plain_test: Loader | None = None


def build_loaders(config: RunConfig, data: DataSet, rank: int, world: int) -> Loaders:
    """The data loaders of a run. Only the training loader shuffles and shards its batches over ranks.

    Only the training loader augments, unless `data.augment_test` is set.
    """
    options = config.data
    preprocess = build_preprocess(options.preprocess, data.mean, data.std)
    augment = build_augment(options.augment)
    load = partial(Loader, seed=config.seed, preprocess=preprocess, classes=len(data.classes))
    indices, validation = _split(config, data)
    training = load(
        data.train,
        indices,
        batch_size=config.train.batch_size,
        shuffle=True,
        drop_last=config.train.drop_last,
        augment=augment,
        rank=rank,
        world=world,
    )
    validated = None if validation is None else load(*validation, batch_size=VALIDATION_BATCH)
    test, plain_test = build_test_loaders(config, data)
    return Loaders(training, validated, test, data.train.labels[indices], plain_test)


def subset_tested(config: RunConfig, data: DataSet) -> Tensor:
    """The indices of the test images that are tested: all, or a subset that is the same for every seed."""
    return split(data.test.labels, seed=0, subset=config.data.test_subset)[0]


def build_test_loaders(
    config: RunConfig, data: DataSet, leave_out: Collection[int] = ()
) -> tuple[Loader, Loader | None]:
    """(the test images, the same without augmentation or None if `test` does not augment). Needs no training images.

    `leave_out` are indices of test images.
    """
    options = config.data
    preprocess = build_preprocess(options.preprocess, data.mean, data.std)
    augment = build_augment(options.augment) if options.augment_test else None
    tested = subset_tested(config, data)
    load = partial(
        Loader,
        data.test,
        tested[~torch.isin(tested, torch.tensor([*leave_out], dtype=torch.int64))],
        batch_size=config.train.test_batch_size,
        seed=config.seed,
        preprocess=preprocess,
        classes=len(data.classes),
    )
    if augment is None:
        return load(), None
    _check_augmented_test(augment, options.augment)
    return load(augment=augment), load()


def _check_augmented_test(augment: Augment, text: str | None) -> None:
    """Raises an error if the augmentation cannot be applied to test images."""
    where = f"data.augment_test=True with data.augment={text!r} is not valid"
    if augment.mixes:
        raise FavoritError(f"{where}: a test image has a single label, so it cannot be mixed")
    if augment.classes:
        raise FavoritError(f"{where}: a step limited to some classes reveals the label")


def class_weights(labels: Tensor, classes: int, given: tuple[float, ...] | bool = True) -> Tensor:
    """The weight of each class in the loss; the mean over images is 1.

    True gives N / (C count), so that rare classes count as much as common ones. A tuple w gives
    w N / sum_i w[labels[i]].
    """
    if isinstance(given, bool):
        return len(labels) / (classes * torch.bincount(labels, minlength=classes).clamp(min=1)).float()
    if len(given) != classes:
        raise FavoritError(
            f"train.class_weights has {len(given)} weights, the data have {classes} classes: give one for each class"
        )
    weights = torch.tensor(given, dtype=torch.float64)
    return (weights * len(labels) / weights[labels].sum()).float()


def _split(config: RunConfig, data: DataSet) -> tuple[Tensor, tuple[Images, Tensor | None] | None]:
    """(training indices, (validation images, their indices)).

    Validation uses the data set's own validation part if it has one, else indices held out from the training part.
    """
    options = config.data
    own = data.validation if options.folds is None else None
    training, held_out = split(
        data.train.labels,
        seed=config.seed,
        validation=0 if own is not None else options.validation,
        folds=options.folds,
        fold=options.fold,
        subset=options.subset,
        classes=data.classes,
    )
    if own is not None:
        return training, (own, None)
    return training, (data.train, held_out) if len(held_out) else None
