"""Images within charts: PNG data URLs, and rows of images with names."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from favorit.charts.axes import panel_title
from favorit.charts.save import SCALE

if TYPE_CHECKING:
    import altair
    import numpy as np

LETTER = 6.8  # width of a letter of a name, in points
LINE = 13  # height of a line
NAME_GAP = 6  # between an image and its name
FILLED = 0.87  # largest share of a step that an image takes


def png_url(pixels: np.ndarray, width: float) -> str:
    """The data URL of a uint8 image (H, W, 3), for a mark that is `width` points wide.

    Pixels of a small image are repeated up to the resolution of the written PNG, because viewers blur small images. A
    larger image is reduced to this resolution.
    """
    from PIL import Image

    target = math.ceil(SCALE * width)
    high, wide = pixels.shape[:2]
    factor = math.ceil(target / wide)
    image = Image.fromarray(pixels.repeat(factor, 0).repeat(factor, 1))
    if wide > target:
        image = image.resize((target, max(1, round(high * target / wide))))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture_row(
    images: Sequence[tuple[str, np.ndarray]], step: float, height: float, columns: int, title: str
) -> altair.LayerChart | altair.FacetChart:
    """Images side by side, at a distance of `step`, at most `height` high; the name is below each.

    The row has places for `columns` images.
    """
    import altair as alt
    import pandas

    rows: list[dict[str, Any]] = []
    for number, (name, pixels) in enumerate(images):
        high, wide = pixels.shape[:2]
        scale = min(FILLED * step / wide, height / high)
        rows.append(
            {
                "x": number * step,
                "center": number * step + wide * scale / 2,
                "name": wrap(name, max(1, int(step / LETTER))),
                "width": wide * scale,
                "height": high * scale,
                "url": png_url(pixels, wide * scale),
            }
        )
    table = pandas.DataFrame(rows)
    bottom = table["height"].max() + NAME_GAP

    def place(field: str) -> altair.X:
        return alt.X(f"{field}:Q", axis=None, scale=alt.Scale(domain=(0, columns * step), nice=False))

    layers = [
        alt.Chart(pandas.DataFrame([row]))
        .mark_image(width=row["width"], height=row["height"], align="left", baseline="top", smooth=False)
        .encode(x=place("x"), y=alt.value(0), url="url:N")
        for row in rows
    ]
    names = alt.Chart(table[["center", "name"]]).mark_text(baseline="top", font="monospace", size=11, lineHeight=LINE)
    return alt.layer(*layers, names.encode(x=place("center"), y=alt.value(bottom), text="name:N")).properties(
        width=columns * step, height=bottom + LINE * table["name"].map(len).max(), title=panel_title(title)
    )
