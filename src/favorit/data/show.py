"""One picture of a data set: samples by class, the steps of augmentation on one image, channel histograms, patches.

`picture` computes what is shown, `draw` draws it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from favorit.data.augment import AUGMENTS, Augment
from favorit.data.images import DataSet, Images
from favorit.data.preprocess import Preprocess
from favorit.errors import FavoritError
from favorit.spec import parse_pattern

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES_SHOWN = 10
SAMPLES_SHOWN = 10
IMAGES_COUNTED = 5000
TILE_SIDE = 32
GAP = 0.08
PAPER = (226, 232, 240)
COLOURS = {1: ("#444444",), 3: ("#c8443c", "#3f8f4f", "#3b6fb5")}


@dataclass(frozen=True)
class Picture:
    """`samples`: (class, images uint8 (n, C, H, W)); `steps`: (what was done, image uint8 (C, H, W)), the original first;
    `histograms`: (C, 256), each row sums to 1; `patches`: uint8 (rows, columns, C, p, p)."""

    title: str
    caption: str
    samples: tuple[tuple[str, Tensor], ...]
    steps: tuple[tuple[str, Tensor], ...]
    histograms: Tensor
    patches: Tensor


def picture(dataset: DataSet, augment: str | None = None, patch: int | None = None, seed: int = 0) -> Picture:
    """What the picture of a data set shows, from its training images; `augment` and `patch` have defaults that fit its size."""
    height, width = dataset.image_size
    side = min(height, width)
    augment = augment or f"crop({max(1, side // 8)})|flip|rotate(15)|cutout({max(2, side // 4)})|mixup(1.0)"
    patch = patch or _patch_size(side)
    if not 1 <= patch <= side:
        raise FavoritError(f"patch={patch}: in 1..{side} for images of {height}x{width}")
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(seed))
    shown = dataset.classes[:CLASSES_SHOWN]
    images, labels = dataset.train.images, dataset.train.labels[order]
    samples = tuple((name, images[order[labels == number][:SAMPLES_SHOWN]]) for number, name in enumerate(shown))
    counted = images[order[:IMAGES_COUNTED].sort().values].transpose(0, 1).flatten(1)
    histograms = torch.stack([torch.bincount(channel, minlength=256) for channel in counted]).float() / counted.shape[1]
    model = images[int(order[0])]
    return Picture(
        title=f"{dataset.name}: {len(dataset.classes)} classes, {height} x {width} x {dataset.channels}, "
        f"{len(dataset.train):,} training and {len(dataset.test):,} test images",
        caption=f"{dataset.citation}. Licence: {dataset.licence}. sha256 {dataset.digest[:16]}",
        samples=samples,
        steps=_steps(dataset, augment, int(order[0]), int(order[min(1, len(order) - 1)]), seed),
        histograms=histograms,
        patches=model.unfold(1, patch, patch).unfold(2, patch, patch).permute(1, 2, 0, 3, 4).contiguous(),
    )


def _patch_size(side: int) -> int:
    """The divisor of `side` that makes about seven patches, of two pixels at least where that is possible."""
    divisors = [size for size in range(2, side + 1) if side % size == 0]
    return min(divisors, key=lambda size: abs(size - side / 7), default=1)


def _steps(dataset: DataSet, text: str, sample: int, partner: int, seed: int) -> tuple[tuple[str, Tensor], ...]:
    """The image after one step, two, ...; of twenty epochs the one whose least visible step shows most."""
    specs = parse_pattern(text)
    stages = [AUGMENTS.build(spec) for spec in specs]
    pair = Images(dataset.train.images[[sample, partner]], dataset.train.labels[[sample, partner]])
    grey = Preprocess(dataset.mean, dataset.std).mean_colour
    best, best_change = [pair.images[0]], -1.0
    for epoch in range(20):
        results = [pair.images[0]]
        for count in range(1, len(stages) + 1):
            augment = Augment(stages[:count])
            rows = augment.draw(seed, epoch, len(pair))
            out = augment.spatial(pair.images, rows, grey)
            if augment.mixes:
                out = augment.mix(out.float(), [row[:1] for row in rows])[0].round().to(torch.uint8)
            results.append(out[0])
        change = min((float((a.float() - b.float()).abs().mean()) for a, b in pairwise(results)), default=0.0)
        if change > best_change:
            best, best_change = results, change
    return tuple(zip(["original", *map(str, specs)], best, strict=True))


def draw(content: Picture) -> Figure:
    """The figure of a Picture."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(15, 8), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    figure.suptitle(content.title, fontsize=15, fontweight="bold", x=0.01, ha="left")
    figure.supxlabel(content.caption, fontsize=8.5, color="#666666", x=0.01, ha="left")
    steps = len(content.steps)
    grid = figure.add_gridspec(2, 2 * steps, height_ratios=(1, 2.6))
    _draw_samples(figure.add_subplot(grid[:, :steps]), content)
    right = grid[:, steps:].subgridspec(2, 1, height_ratios=(1, 2.6))
    upper, lower = right[0].subgridspec(1, steps), right[1].subgridspec(1, 2, width_ratios=(1, 1.3))
    for number, (step, image) in enumerate(content.steps):
        axes = figure.add_subplot(upper[number])
        _show(axes, image)
        axes.set_xlabel(step, fontsize=9, family="monospace")
        if number == 0:
            axes.set_title("Steps of augmentation", fontsize=11, loc="left")
    _draw_histograms(figure.add_subplot(lower[0]), content)
    patches = figure.add_subplot(lower[1])
    rows, columns, _, side, _ = content.patches.shape
    _show(patches, _mosaic(content.patches))
    patches.set_title(f"{rows} x {columns} patches of {side} x {side}", fontsize=11, loc="left")
    return figure


def save_picture(dataset: DataSet, path: str | PathLike[str], augment: str | None = None, patch: int | None = None, seed: int = 0) -> None:
    """Writes the picture of a data set to a file; the ending says the format."""
    figure = draw(picture(dataset, augment, patch, seed))
    try:
        with warnings.catch_warnings():  # a class name in letters that matplotlib's font has not is a row of boxes
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise FavoritError(f"cannot write {path}: {error}".partition("\n")[0]) from None


def _draw_samples(axes: Axes, content: Picture) -> None:
    first = content.samples[0][1]
    tiles = first.new_full((len(content.samples), SAMPLES_SHOWN, *first.shape[1:]), 255)
    for row, (_, images) in zip(tiles, content.samples, strict=True):
        row[: len(images)] = images
    sheet = _mosaic(tiles)
    _show(axes, sheet)
    axes.set_title("Samples by class", fontsize=11, loc="left")
    pitch = sheet.shape[1] / len(tiles)
    axes.set_yticks([(number + 0.5) * pitch for number in range(len(tiles))], [name for name, _ in content.samples])
    axes.tick_params(length=0, labelsize=10)


def _draw_histograms(axes: Axes, content: Picture) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    channels = len(content.histograms)
    names = ("red", "green", "blue") if channels == 3 else tuple(f"channel {number + 1}" for number in range(channels))
    for number, values in enumerate(content.histograms):
        colour = COLOURS.get(channels, (f"C{number}",) * channels)[number]
        axes.stairs(values.numpy(), range(257), color=colour, label=names[number], linewidth=1.2)
        axes.stairs(values.numpy(), range(257), color=colour, fill=True, alpha=0.12)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axes.set_xlim(0, 256)
    axes.set_xticks([0, 64, 128, 192, 255])
    axes.set_xlabel("pixel value")
    axes.set_ylabel("share of pixels")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Channel histograms", fontsize=11, loc="left")
    if channels > 1:
        axes.legend(frameon=False, fontsize=9)


def _mosaic(tiles: Tensor) -> Tensor:
    """(R, K, C, H, W) -> the tiles as one RGB picture (3, ., .), apart from each other by a part of their side."""
    rows, columns, _, height, width = tiles.shape
    # Whole pixels only: small tiles are magnified first, so that the gap does not become as wide as they are.
    factor = -(-TILE_SIDE // min(height, width))
    tiles = tiles.repeat_interleave(factor, 3).repeat_interleave(factor, 4)
    gap = max(1, round(GAP * min(tiles.shape[3:])))
    sheet = torch.tensor(PAPER, dtype=torch.uint8).view(3, 1, 1).repeat(rows, columns, 1, 1, 1)
    sheet = sheet.expand(-1, -1, -1, height * factor + gap, width * factor + gap).clone()
    sheet[..., gap // 2 : gap // 2 + height * factor, gap // 2 : gap // 2 + width * factor] = _rgb(tiles, 2)
    return sheet.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)


def _rgb(images: Tensor, axis: int) -> Tensor:
    """Three channels as they are, otherwise the first of them in grey."""
    return images if images.shape[axis] == 3 else images.narrow(axis, 0, 1).repeat_interleave(3, axis)


def _show(axes: Axes, image: Tensor) -> None:
    """Draws uint8 (C, H, W)."""
    axes.imshow(_rgb(image, 0).permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_anchor("NW")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
