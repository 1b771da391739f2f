"""Data sets from a Python script: arrays, tensors and torch Datasets.

Pixels are stored as uint8, as in every data set. Floats in [0, 1] are rounded to multiples of 1/255.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from favorit.data.datasets import ARRAYS
from favorit.data.images import DataSet, Images, make_dataset
from favorit.data.pixels import as_batch, as_image, as_tensor
from favorit.data.splits import hold_out_test
from favorit.errors import FavoritError

READ_TWICE = 8  # images that are read twice, to find a random transform


def build_dataset(
    images: Any,
    labels: Any = None,
    *,
    test: Any = None,
    validation: Any = None,
    classes: Sequence[str] | None = None,
) -> DataSet:
    """A data set for `favorit.train(config, data=...)`.

    Images are uint8, or floats in [0, 1], without normalization: training normalizes with the mean and standard
    deviation of the training images.

    Args:
        images: The training images as an array or tensor (N, H, W), (N, H, W, C) or (N, C, H, W); or a torch Dataset
            of (image, label) with PIL images, arrays or tensors of one size.
        labels: The class of each image as integers 0..C-1. None for a Dataset, or if `images` is (images, labels).
        test: The test part: (images, labels) or a Dataset. By default, a stratified 20 % of the images is held out.
        validation: The validation part. By default, `data.validation` of the configuration holds it out.
        classes: The names of the classes. By default `classes` of the Dataset, else the numbers of the labels.

    Example:
        data = favorit.build_dataset(images, labels, classes=["cat", "dog"])
        run = favorit.train({"train": {"epochs": 5}}, data=data)
    """
    given = images if labels is None else (images, labels)
    train = _part(given, "training")
    tested = None if test is None else _part(test, "test", train)
    validated = None if validation is None else _part(validation, "validation", train)
    names = _class_names(classes if classes is not None else getattr(given, "classes", None), train)
    if len(names) < 2:
        raise FavoritError("the training labels have only one class: give at least two, as 0, 1, ...")
    for part, own in (("training", train), ("test", tested), ("validation", validated)):
        if own is not None:
            _check_range(own.labels, len(names), part)
    if missing := sorted(set(range(len(names))) - set(train.labels.tolist())):
        numbers = ", ".join(map(str, missing[:5]))
        raise FavoritError(
            f"no training image has the label {numbers}: labels count from 0, and each class needs an image"
        )
    if tested is None:
        try:
            kept, held_out = hold_out_test(train.labels, len(names), seed=0)
        except FavoritError as error:
            raise FavoritError(f"no test set can be held out: {error}: give test=(images, labels)") from None
        tested = train.subset(held_out)
        train = train.subset(kept)
    return make_dataset(ARRAYS, names, train, tested, validation=validated, licence="yours", citation="yours")


def as_dataset(data: Any) -> DataSet:
    """The data set of the argument `data` of `favorit.train`."""
    found = data if isinstance(data, DataSet) else build_dataset(data)
    if found.name != ARRAYS:
        raise FavoritError(f"data={found.name!r} is a data set with a name: set data.name in the configuration instead")
    return found


def _part(given: Any, part: str, train: Images | None = None) -> Images:
    """The images and labels of a part. Their size must be that of the training images."""
    if isinstance(given, tuple) and len(given) == 2:
        pixels = as_batch(given[0], f"{part} images")
        labels = _labels(given[1], part)
    elif isinstance(given, torch.utils.data.DataLoader):
        raise FavoritError(f"the {part} data are a DataLoader: give its Dataset, loader.dataset")
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__") and not _is_array(given):
        pixels, labels = _read(given, part)
    else:
        raise FavoritError(
            f"the {part} data must be (images, labels) or a torch Dataset with a length, not {type(given).__name__}"
        )
    if len(pixels) != len(labels):
        raise FavoritError(
            f"the {part} data have {len(pixels)} images and {len(labels)} labels: give one label for each"
        )
    if train is not None and pixels.shape[1:] != train.images.shape[1:]:
        raise FavoritError(
            f"{part} images have shape {tuple(pixels.shape[1:])}, training images {tuple(train.images.shape[1:])} "
            "(channels, rows, columns): give images of one shape"
        )
    return Images(pixels, labels)


def _is_array(given: Any) -> bool:
    return isinstance(given, Tensor | str | bytes | dict) or hasattr(given, "__array__")


def _read(dataset: Any, part: str) -> tuple[Tensor, Tensor]:
    """All images and labels of a torch Dataset."""
    if not len(dataset):
        raise FavoritError(f"the {part} data are empty: give at least one image of each class")
    pixels: Tensor | None = None
    labels = []
    for index in range(len(dataset)):
        image, label = _item(dataset, index, part)
        if pixels is None:
            pixels = torch.empty((len(dataset), *image.shape), dtype=torch.uint8)
        if image.shape != pixels.shape[1:]:
            raise FavoritError(
                f"{part} image {index} has shape {tuple(image.shape)}, image 0 has {tuple(pixels.shape[1:])} "
                "(channels, rows, columns): resize them to one size in the Dataset"
            )
        pixels[index] = image
        labels.append(label)
    assert pixels is not None
    for index in range(min(READ_TWICE, len(dataset))):
        if not torch.equal(_item(dataset, index, part)[0], pixels[index]):
            raise FavoritError(
                f"{part} image {index} changes when it is read again: remove the random transform of the Dataset, "
                "and augment with data.augment"
            )
    return pixels, _labels(labels, part)


def _item(dataset: Any, index: int, part: str) -> tuple[Tensor, Any]:
    item = dataset[index]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise FavoritError(f"item {index} of the {part} Dataset must be (image, label), not {type(item).__name__}")
    return as_image(item[0], f"{part} image {index}"), item[1]


def _labels(labels: Any, part: str) -> Tensor:
    """int64 (N,)."""
    if isinstance(labels, list | tuple):
        labels = np.asarray([label.item() if isinstance(label, Tensor) else label for label in labels])
    found = as_tensor(labels, f"{part} labels")
    kinds = f"integers of shape (N,), not {found.dtype} {tuple(found.shape)}"
    if found.ndim == 2 and found.shape[1] > 1:
        raise FavoritError(f"{part} labels must be {kinds}: for one-hot labels, give labels.argmax(1)")
    if found.ndim == 2:
        raise FavoritError(f"{part} labels must be {kinds}: give labels[:, 0]")
    if found.ndim != 1 or found.is_floating_point() or found.is_complex() or found.dtype is torch.bool:
        raise FavoritError(f"{part} labels must be {kinds}: convert them to integers 0, 1, 2, ...")
    return found.long()


def _class_names(given: Any, train: Images) -> tuple[str, ...]:
    if given is None:
        return tuple(str(label) for label in range(int(train.labels.max()) + 1)) if len(train) else ()
    names = tuple(given) if isinstance(given, list | tuple) else ()
    if len(set(names)) < max(2, len(names)) or not all(isinstance(name, str) for name in names):
        raise FavoritError(
            f"classes={given!r} is not valid: a list of at least two different names, one for each label"
        )
    return names


def _check_range(labels: Tensor, classes: int, part: str) -> None:
    if labels.min() < 0:
        raise FavoritError(f"the {part} labels start at {int(labels.min())}: labels count from 0")
    bad = (labels >= classes).nonzero()
    if len(bad):
        index = int(bad[0])
        raise FavoritError(
            f"{part} image {index} has the label {int(labels[index])}: with {classes} classes, labels are 0 to "
            f"{classes - 1}"
        )
