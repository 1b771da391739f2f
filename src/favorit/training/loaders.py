"""Which images a run trains on, is validated on and tested on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from favorit.config import RunConfig
from favorit.data import Augment, DataSet, Images, Loader, build_augment, build_preprocess, split
from favorit.errors import FavoritError

VALIDATION_BATCH = 500


@dataclass(frozen=True)
class Parts:
    """The batches of a run; `validation` is None where no images are set aside. `labels` are those that are trained on.

    `plain_test` are the test images as they are, where `test` augments them, else None.
    """

    training: Loader
    validation: Loader | None
    test: Loader
    labels: Tensor
    plain_test: Loader | None = None


def load_parts(config: RunConfig, data: DataSet, rank: int, world: int) -> Parts:
    """The parts of a data set. Only the training part is shuffled, shared between ranks and, unless it is asked for,
    augmented.
    """
    options, preprocess = config.data, build_preprocess(config.data.preprocess, data.mean, data.std)
    augment = build_augment(options.augment)
    if options.augment_test and augment is not None:
        _check_augmented_test(augment, options.augment)
    load = partial(Loader, seed=config.seed, preprocess=preprocess, classes=len(data.classes))
    positions, validation = _split(config, data)
    training = load(
        data.train,
        positions,
        batch_size=config.train.batch_size,
        shuffle=True,
        drop_last=config.train.drop_last,
        augment=augment,
        rank=rank,
        world=world,
    )
    # The subset does not depend on the run's seed: runs are compared on the same images.
    tested = None if options.test_subset is None else split(data.test.labels, seed=0, subset=options.test_subset)[0]
    plain_test = load(data.test, tested, batch_size=config.train.test_batch_size)
    validated = None if validation is None else load(*validation, batch_size=VALIDATION_BATCH)
    labels = data.train.labels[positions]
    if not options.augment_test or augment is None:
        return Parts(training, validated, plain_test, labels)
    test = load(data.test, tested, batch_size=config.train.test_batch_size, augment=augment)
    return Parts(training, validated, test, labels, plain_test)


def _check_augmented_test(augment: Augment, text: str | None) -> None:
    """An error if the augmentation cannot be applied to test images."""
    if augment.mixes:
        raise FavoritError(
            f"data.augment_test=True with data.augment={text!r}: a test image has one label, nothing can be mixed"
        )
    if augment.classes:
        raise FavoritError(
            f"data.augment_test=True with data.augment={text!r}: a step for some classes would tell the model the label"
        )


def class_weights(labels: Tensor, classes: int, given: tuple[float, ...] | bool = True) -> Tensor:
    """The weight of each class in the loss; the mean over images is 1.

    True: N / (C count), so that rare classes count as much as common ones. A tuple w: w N / sum_i w[labels[i]].
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
    """The training positions, and the validation images: the data set's own part where it brings one, else positions
    set aside.
    """
    options = config.data
    own = data.validation if options.folds is None else None
    aside = 0 if own is not None else options.validation
    training, held = split(
        data.train.labels,
        seed=config.seed,
        validation=aside,
        folds=options.folds,
        fold=options.fold,
        subset=options.subset,
    )
    if own is not None:
        return training, (own, None)
    return training, (data.train, held) if len(held) else None
