"""Draws the overview picture of a data set."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from favorit.data.images import DataSet
from favorit.data.show import Picture, picture
from favorit.export import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TILE_SIDE = 32
GAP = 0.08
SAMPLES_SPACE = (6.4, 7.2)  # inches, width and height
PAPER = (226, 232, 240)
COLORS = {1: ("#444444",), 3: ("#c8443c", "#3f8f4f", "#3b6fb5")}
SHOWN_RANGE = (-2.0, 2.0)  # normalized values drawn as black and white


def draw(content: Picture) -> Figure:
    """The figure of a Picture."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(15, 8.5), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    figure.suptitle(content.title, fontsize=15, fontweight="bold", x=0.01, ha="left", parse_math=False)
    figure.supxlabel(content.caption, fontsize=8.5, color="#666666", x=0.01, ha="left", parse_math=False)
    halves = figure.add_gridspec(1, 2)
    _draw_samples(figure.add_subplot(halves[0]), content)
    rows = halves[1].subgridspec(3, 1, height_ratios=(1, 1, 2.4))
    views = _views(content)
    steps = [*([content.file] if content.file else []), *content.steps]
    columns = max(len(steps), len(views))
    lower = rows[2].subgridspec(1, 2, width_ratios=(1, 1.3))
    for row, title, images in (
        (rows[0], "Steps of augmentation", steps),
        (rows[1], "Views of the original", views),
    ):
        places = row.subgridspec(1, columns)
        for number, (name, image) in enumerate(images):
            axes = figure.add_subplot(places[number])
            _show(axes, image)
            axes.set_xlabel(name, fontsize=9, family="monospace")
            if number == 0:
                axes.set_title(title, fontsize=11, loc="left")
    _draw_histograms(figure.add_subplot(lower[0]), content)
    patches = figure.add_subplot(lower[1])
    high, wide, _, side, _ = content.patches.shape
    _show(patches, _mosaic(content.patches))
    patches.set_title(f"{high} x {wide} patches of {side} x {side}", fontsize=11, loc="left")
    return figure


def save_picture(
    dataset: DataSet, path: str | PathLike[str], augment: str | None = None, patch: int | None = None, seed: int = 0
) -> None:
    """Writes the picture of a data set to a file; its suffix sets the format."""
    figure = draw(picture(dataset, augment, patch, seed))
    with warnings.catch_warnings():  # letters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        save_figure(figure, Path(path))


def _draw_samples(axes: Axes, content: Picture) -> None:
    first = content.samples[0][1]
    count = max(len(images) for _, images in content.samples)
    columns = sample_columns(len(content.samples), count, *first.shape[2:])
    rows = -(-count // columns)
    tiles = first.new_full((len(content.samples), rows * columns, *first.shape[1:]), 255)
    for row, (_, images) in zip(tiles, content.samples, strict=True):
        row[: len(images)] = images
    sheet = _mosaic(tiles.unflatten(1, (rows, columns)).flatten(0, 1))
    _show(axes, sheet)
    axes.set_title("Samples by class", fontsize=11, loc="left")
    pitch = sheet.shape[1] / len(tiles)
    axes.set_yticks(
        [(number + 0.5) * pitch for number in range(len(tiles))],
        [name for name, _ in content.samples],
        parse_math=False,
    )
    axes.tick_params(length=0, labelsize=10)
    if rows > 1:
        for number in range(1, len(tiles)):
            axes.axhline(number * pitch - 0.5, color="white", linewidth=6)


def sample_columns(classes: int, count: int, height: int, width: int) -> int:
    """The number of images in a row of samples for which images are largest, with few empty places. A class may
    have several rows.
    """

    def scale(columns: int) -> float:
        rows = classes * -(-count // columns)
        return min(SAMPLES_SPACE[0] / (columns * width), SAMPLES_SPACE[1] / (rows * height))

    return max(range(1, count + 1), key=lambda columns: (scale(columns), -(-count % columns)))


def _views(content: Picture) -> list[tuple[str, Tensor]]:
    """(name, image uint8) of the normalized original and, if there are several channels, of each channel."""
    _, original = content.steps[0]
    low, high = SHOWN_RANGE
    shown = ((content.normalized - low) * (255 / (high - low))).round().clamp(0, 255).to(torch.uint8)
    names = _channel_names(content)
    # Channels of an RGB image are drawn in their color, others in gray.
    alone = torch.diag_embed(original.permute(1, 2, 0)).permute(2, 3, 0, 1) if len(names) == 3 else original[:, None]
    return [("normalized", shown), *(zip(names, alone, strict=True) if len(names) > 1 else ())]


def _channel_names(content: Picture) -> tuple[str, ...]:
    channels = len(content.histograms)
    return ("red", "green", "blue") if channels == 3 else tuple(f"channel {number + 1}" for number in range(channels))


def _draw_histograms(axes: Axes, content: Picture) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    names = _channel_names(content)
    channels = len(names)
    for number, values in enumerate(content.histograms):
        color = COLORS.get(channels, (f"C{number}",) * channels)[number]
        axes.stairs(values.numpy(), range(257), color=color, label=names[number], linewidth=1.2)
        axes.stairs(values.numpy(), range(257), color=color, fill=True, alpha=0.12)
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
    """(R, K, C, H, W) -> one RGB picture (3, height, width) of all tiles, with gaps between them."""
    rows, columns, _, height, width = tiles.shape
    # Gaps are whole pixels, so small tiles are magnified first. Otherwise gaps could be as wide as tiles.
    factor = -(-TILE_SIDE // min(height, width))
    tiles = tiles.repeat_interleave(factor, 3).repeat_interleave(factor, 4)
    gap = max(1, round(GAP * min(tiles.shape[3:])))
    sheet = torch.tensor(PAPER, dtype=torch.uint8).view(3, 1, 1).repeat(rows, columns, 1, 1, 1)
    sheet = sheet.expand(-1, -1, -1, height * factor + gap, width * factor + gap).clone()
    sheet[..., gap // 2 : gap // 2 + height * factor, gap // 2 : gap // 2 + width * factor] = _rgb(tiles, 2)
    return sheet.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)


def _rgb(images: Tensor, axis: int) -> Tensor:
    """RGB images unchanged; otherwise the first channel in gray."""
    return images if images.shape[axis] == 3 else images.narrow(axis, 0, 1).repeat_interleave(3, axis)


def _show(axes: Axes, image: Tensor) -> None:
    """Draws uint8 (C, H, W)."""
    axes.imshow(_rgb(image, 0).permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_anchor("NW")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
