"""Images within charts: PNG data URLs, and rows of images with names."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from favorit.charts.axes import panel_title
from favorit.charts.save import SCALE

if TYPE_CHECKING:
    import altair
    import numpy as np

LETTER = 6.8  # width of a letter of a name, in points
LINE = 13  # height of a line
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
    """Images of one size side by side, at a distance of `step`, at most `height` high; the name is below each.

    The row has places for `columns` images.
    """
    import altair as alt
    import pandas

    high, wide = images[0][1].shape[:2]
    scale = min(FILLED * step / wide, height / high)
    names = [wrap(name, max(1, int(step / LETTER))) for name, _ in images]
    base = alt.Chart(
        pandas.DataFrame(
            {
                "x": [number * step for number in range(len(images))],
                "center": [number * step + wide * scale / 2 for number in range(len(images))],
                "name": names,
                "url": [png_url(pixels, wide * scale) for _, pixels in images],
            }
        )
    )

    def place(field: str) -> altair.X:
        return alt.X(f"{field}:Q", axis=None, scale=alt.Scale(domain=(0, columns * step), nice=False))

    return alt.layer(
        base.mark_image(width=wide * scale, height=high * scale, align="left", baseline="top", smooth=False).encode(
            x=place("x"), y=alt.value(0), url="url:N"
        ),
        base.mark_text(baseline="top", font="monospace", size=11, lineHeight=LINE).encode(
            x=place("center"), y=alt.value(high * scale + 6), text="name:N"
        ),
    ).properties(
        width=columns * step,
        height=high * scale + 6 + LINE * max(map(len, names)),
        title=panel_title(title),
    )
