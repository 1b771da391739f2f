"""The content of a data set's overview picture: samples by class, augmentation steps on one image, that image in its
file, normalized and channel by channel, channel histograms, patches. `show_figure` draws it, `show_text` describes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from favorit.data.augment import AUGMENTS, Augment, Stage
from favorit.data.fit import WHOLE, fit_loss, kept_box
from favorit.data.image_files import open_upright
from favorit.data.images import DataSet, Images
from favorit.data.preprocess import Preprocess
from favorit.errors import FavoritError
from favorit.spec import parse_pattern

CLASSES_SHOWN = 10
SAMPLES_SHOWN = 10
IMAGES_COUNTED = 5000
FILE_SIDE = 256


@dataclass(frozen=True)
class Picture:
    """The content of an overview picture.

    samples         (class, images uint8 (n, C, H, W))
    steps           (augmentation step, image uint8 (C, H, W)), the original first
    file            (size, uint8 (3, h, w)), the original in its file, with pale pixels where it is cut off; None if it
                    keeps its shape
    normalized      float (C, H, W), the original after (x - mean) / std
    histograms      (C, 256), each row sums to 1
    patches         uint8 (rows, columns, C, p, p)
    """

    title: str
    caption: str
    samples: tuple[tuple[str, Tensor], ...]
    steps: tuple[tuple[str, Tensor], ...]
    normalized: Tensor
    histograms: Tensor
    patches: Tensor
    file: tuple[str, Tensor] | None = None


def picture(dataset: DataSet, augment: str | None = None, patch: int | None = None, seed: int = 0) -> Picture:
    """The picture of some training images. The defaults of `augment` and `patch` depend on the image size."""
    height, width = dataset.image_size
    side = min(height, width)
    augment = augment or _default_augment(side)
    patch = patch or _patch_size(side)
    if not 1 <= patch <= side:
        raise FavoritError(f"patch={patch} is not valid: 1..{side} for images of {height}x{width}")
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(seed % 2**63))
    shown = dataset.classes[:CLASSES_SHOWN]
    images, labels = dataset.train.images, dataset.train.labels[order]
    samples = tuple((name, images[order[labels == number][:SAMPLES_SHOWN]]) for number, name in enumerate(shown))
    counted = images[order[:IMAGES_COUNTED].sort().values].transpose(0, 1).flatten(1)
    histograms = torch.stack([torch.bincount(channel, minlength=256) for channel in counted]).float() / counted.shape[1]
    stages = [(str(spec), AUGMENTS.build(spec)) for spec in parse_pattern(augment)]
    chosen = _changed_by_all([stage for _, stage in stages], dataset, order)
    original = images[chosen]
    file = _in_its_file(dataset, chosen)
    return Picture(
        title=f"{dataset.name}: {len(dataset.classes)} classes, {height} x {width} x {dataset.channels}, "
        f"{len(dataset.train):,} training and {len(dataset.test):,} test images",
        caption=f"{dataset.citation}. License: {dataset.licence}. sha256 {dataset.digest[:16]}",
        samples=samples,
        steps=_steps(dataset, stages, chosen, int(order[min(1, len(order) - 1)]), seed),
        normalized=Preprocess(dataset.mean, dataset.std)(original[None])[0],
        histograms=histograms,
        patches=original.unfold(1, patch, patch).unfold(2, patch, patch).permute(1, 2, 0, 3, 4).contiguous(),
        file=file,
    )


def _default_augment(side: int) -> str:
    """Steps that change an image visibly. An image of one pixel cannot be cropped."""
    crop = f"crop({max(1, side // 8)})|" if side > 1 else ""
    return f"{crop}flip|rotate(15)|cutout({min(side, max(2, side // 4))})|mixup(1.0)"


def _patch_size(side: int) -> int:
    """The divisor of `side` nearest to side / 7, at least 2 if possible."""
    divisors = [size for size in range(2, side + 1) if side % size == 0]
    return min(divisors, key=lambda size: abs(size - side / 7), default=1)


def _changed_by_all(stages: list[Stage], dataset: DataSet, order: Tensor) -> int:
    """The first sample in `order` with a class that no step excludes, if possible one whose file has another shape;
    `order[0]` if there is no such sample.
    """
    augment = Augment(stages)
    augment.check_classes(len(dataset.classes))
    augment.check_size(*dataset.image_size)
    changed = torch.stack([stage.changes(dataset.train.labels[order]) for stage in stages]).all(0)
    fitted = torch.tensor([_loses(dataset, index) for index in order.tolist()])
    both = changed & fitted
    return int(order[int((both if both.any() else changed).int().argmax())])


def _loses(dataset: DataSet, index: int) -> bool:
    """True if the image does not have the shape of its file."""
    return dataset.files is not None and fit_loss(dataset.fit, dataset.files.sizes[index], dataset.image_size) != WHOLE


def _in_its_file(dataset: DataSet, index: int) -> tuple[str, Tensor] | None:
    """(size, image) of a training image in its file, with pale pixels where it is cut off; None if nothing changes."""
    if dataset.files is None or not _loses(dataset, index):
        return None
    height, width = dataset.files.sizes[index]
    shown = open_upright(dataset.files.root / dataset.files.train[index])
    shown.thumbnail((FILE_SIDE, FILE_SIDE))
    pixels = torch.from_numpy(np.asarray(shown).copy()).permute(2, 0, 1)
    left, top, right, bottom = (
        round(edge * shown.width / width) for edge in kept_box(dataset.fit, (height, width), dataset.image_size)
    )
    kept = torch.zeros(pixels.shape[1:], dtype=torch.bool)
    kept[top:bottom, left:right] = True
    return f"file {width}x{height}", torch.where(kept, pixels, 160 + pixels // 8 * 3)


def _steps(
    dataset: DataSet, stages: list[tuple[str, Stage]], sample: int, partner: int, seed: int
) -> tuple[tuple[str, Tensor], ...]:
    """The image after one step, two steps, and so on.

    Tries the random numbers of 20 epochs and keeps those whose least visible step changes the image most.
    """
    pair = Images(dataset.train.images[[sample, partner]], dataset.train.labels[[sample, partner]])
    gray = Preprocess(dataset.mean, dataset.std).mean_color
    best, best_change = [pair.images[0]], -1.0
    for epoch in range(20):
        results = [pair.images[0]]
        for count in range(1, len(stages) + 1):
            augment = Augment([stage for _, stage in stages[:count]])
            rows = augment.draw(seed, epoch, len(pair))
            out = augment.spatial(pair.images, pair.labels, rows, gray)
            if augment.mixes:
                out = augment.mix(out.float(), pair.labels[:1], [row[:1] for row in rows])[0].round().to(torch.uint8)
            results.append(out[0])
        change = min((float((a.float() - b.float()).abs().mean()) for a, b in pairwise(results)), default=0.0)
        if change > best_change:
            best, best_change = results, change
    return tuple(zip(["original", *(text for text, _ in stages)], best, strict=True))
