"""Draws the overview picture of a data set."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from favorit.charts.axes import log_ticks, panel_title, titled
from favorit.charts.palette import BASELINE, COLORS
from favorit.charts.pictures import picture_row, png_url
from favorit.charts.save import save_chart
from favorit.data.images import DataSet
from favorit.data.show import Picture, picture

if TYPE_CHECKING:
    import altair
    import numpy as np
    import pandas

TILE_SIDE = 32
GAP = 0.08
SAMPLES_SPACE = (520, 585)  # points, width and height
ROW_WIDTH, ROW_HEIGHT = 640, 96  # of the steps of augmentation and of the views
HISTOGRAM, PATCHES = (270, 220), (300, 250)
CAPTION_LETTERS = 190
PAPER = (226, 232, 240)
RGB = {"red": COLORS[1], "green": COLORS[2], "blue": COLORS[0]}  # distinct for the color-blind
SHOWN_RANGE = (-2.0, 2.0)  # normalized values drawn as black and white


def draw(content: Picture) -> altair.HConcatChart:
    """The figure of a Picture."""
    import altair as alt

    found = views(content)
    steps = [*([content.file] if content.file else []), *content.steps]
    columns = max(len(steps), len(found))
    step = min(ROW_WIDTH / columns, ROW_HEIGHT * 1.15)
    rows = [
        picture_row([(name, _pixels(image)) for name, image in images], step, ROW_HEIGHT, columns, title)
        for title, images in (("Steps of augmentation", steps), ("Views of the original", found))
    ]
    lower = alt.hconcat(_draw_histograms(content), _draw_patches(content), spacing=30)
    right = alt.vconcat(*rows, lower.resolve_scale(color="independent")).resolve_scale(color="independent")
    chart = alt.hconcat(_draw_samples(content), right, spacing=30).resolve_scale(color="independent")
    return titled(chart, f"{content.title}\n{fill(content.caption, CAPTION_LETTERS)}")


def save_picture(
    dataset: DataSet, path: str | PathLike[str], augment: str | None = None, patch: int | None = None, seed: int = 0
) -> None:
    """Writes the picture of a data set to a file; its suffix sets the format."""
    save_chart(draw(picture(dataset, augment, patch, seed)), Path(path))


def _draw_samples(content: Picture) -> altair.Chart:
    """A mosaic for each class, with the name of the class on its left."""
    import altair as alt
    import pandas

    first = content.samples[0][1]
    count = max(len(images) for _, images in content.samples)
    columns = sample_columns(len(content.samples), count, *first.shape[2:])
    rows = -(-count // columns)
    tiles = first.new_full((len(content.samples), rows * columns, *first.shape[1:]), 255)
    for row, (_, images) in zip(tiles, content.samples, strict=True):
        row[: len(images)] = images
    sheets = [_mosaic(each.unflatten(0, (rows, columns))) for each in tiles]
    _, high, wide = sheets[0].shape
    gap = 6 if rows > 1 else 0
    scale = min(SAMPLES_SPACE[0] / wide, (SAMPLES_SPACE[1] / len(sheets) - gap) / high)
    names = [name for name, _ in content.samples]
    table = pandas.DataFrame({"class": names, "url": [png_url(_pixels(sheet), wide * scale) for sheet in sheets]})
    axis = alt.Axis(title=None, ticks=False, domain=False)
    return (
        alt.Chart(table)
        .mark_image(width=wide * scale, height=high * scale, smooth=False)
        .encode(y=alt.Y("class:N", sort=names, axis=axis), x=alt.value(wide * scale / 2), url="url:N")
        .properties(
            width=wide * scale, height=(high * scale + gap) * len(sheets), title=panel_title("Samples by class")
        )
    )


def sample_columns(classes: int, count: int, height: int, width: int) -> int:
    """The number of images in a row of samples for which images are largest, with few empty places. A class may
    have several rows.
    """

    def scale(columns: int) -> float:
        rows = classes * -(-count // columns)
        return min(SAMPLES_SPACE[0] / (columns * width), SAMPLES_SPACE[1] / (rows * height))

    return max(range(1, count + 1), key=lambda columns: (scale(columns), -(-count % columns)))


def views(content: Picture) -> list[tuple[str, Tensor]]:
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
    return tuple(RGB) if channels == 3 else tuple(f"channel {number + 1}" for number in range(channels))


def histogram_table(content: Picture) -> pandas.DataFrame:
    """channel, value and share of pixels."""
    import pandas

    return pandas.DataFrame(
        [
            dict(channel=name, value=value, share=share)
            for name, shares in zip(_channel_names(content), content.histograms.tolist(), strict=True)
            for value, share in enumerate(shares)
        ]
    )


def _draw_histograms(content: Picture) -> altair.Chart:
    """A step line per channel, with a logarithmic axis of shares; values without pixels lie on its lower end."""
    import altair as alt

    table = histogram_table(content)
    names = _channel_names(content)
    low, high = table["share"][table["share"] > 0].min() / 1.2, table["share"].max() * 1.2
    table["share"] = table["share"].clip(lower=low)
    colors = {1: [BASELINE], 3: list(RGB.values())}.get(len(names), list(COLORS))
    legend = alt.Legend(title=None, orient="bottom", symbolType="stroke") if len(names) > 1 else None
    width, height = HISTOGRAM
    return (
        alt.Chart(table)
        .mark_line(interpolate="step", strokeWidth=1.3)
        .encode(
            x=alt.X(
                "value:Q",
                title="pixel value",
                scale=alt.Scale(domain=(-2, 257), nice=False),
                axis=alt.Axis(values=[0, 64, 128, 192, 255]),
            ),
            y=alt.Y(
                "share:Q",
                title="share of pixels",
                scale=alt.Scale(type="log", domain=(low, high), nice=False),
                axis=alt.Axis(values=log_ticks(low, high), format=".2~p"),
            ),
            color=alt.Color(
                "channel:N", sort=list(names), scale=alt.Scale(domain=list(names), range=colors), legend=legend
            ),
        )
        .properties(width=width, height=height, title=panel_title("Channel histograms"))
    )


def _draw_patches(content: Picture) -> altair.Chart:
    """The patches of the original, with gaps between them."""
    import altair as alt
    import pandas

    rows, columns, _, side, _ = content.patches.shape
    sheet = _mosaic(content.patches)
    _, high, wide = sheet.shape
    scale = min(PATCHES[0] / wide, PATCHES[1] / high)
    table = pandas.DataFrame({"url": [png_url(_pixels(sheet), wide * scale)]})
    return (
        alt.Chart(table)
        .mark_image(width=wide * scale, height=high * scale, smooth=False)
        .encode(x=alt.value(wide * scale / 2), y=alt.value(high * scale / 2), url="url:N")
        .properties(
            width=wide * scale,
            height=high * scale,
            title=panel_title(f"{rows} x {columns} patches of {side} x {side}"),
        )
    )


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


def _pixels(image: Tensor) -> np.ndarray:
    """uint8 (C, H, W) -> (H, W, 3)."""
    return _rgb(image, 0).permute(1, 2, 0).numpy()


def _rgb(images: Tensor, axis: int) -> Tensor:
    """RGB images unchanged; otherwise the first channel in gray."""
    return images if images.shape[axis] == 3 else images.narrow(axis, 0, 1).repeat_interleave(3, axis)
