"""Writes charts as files: PNG, SVG and PDF, drawn by vl-convert without a browser."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.charts.svg import without_groups
from favorit.errors import FavoritError
from favorit.files import write_atomically
from favorit.terminal import visible

if TYPE_CHECKING:
    import altair

FORMATS = (".png", ".svg", ".pdf")
NO_XML = {0xFFFE: r"\ufffe", 0xFFFF: r"\uffff"}  # not valid in XML, nor are control characters
SCALE = 2.0  # pixels of a PNG per point of the chart

# The look of every chart. Fonts are those that vl-convert contains, so that files look the same on every machine.
CONFIG: Mapping[str, Any] = {
    "font": "Roboto, Helvetica, Arial, sans-serif",
    "view": {"stroke": None, "continuousWidth": 460, "continuousHeight": 280},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "gridOpacity": 0.5,
        "labelLimit": 260,
        "maxExtent": 300,  # titles keep clear of labels as long as `labelLimit`
    },
    "legend": {
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 260,
        "symbolLimit": 60,
    },
    "header": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "title": {"fontSize": 14, "anchor": "start", "subtitleFontSize": 12, "subtitleColor": "#666666", "offset": 10},
    "line": {"strokeWidth": 1.8},
    "point": {"filled": True, "size": 55},
}


def specification(chart: altair.TopLevelMixin) -> dict[str, Any]:
    """The Vega-Lite specification of a chart with the common look. The chart's own configuration takes precedence.

    Control characters in its texts are written as escapes: vl-convert aborts the process if text is not valid in XML.
    """
    import altair

    with altair.data_transformers.enable("default", max_rows=None):
        found: dict[str, Any] = chart.to_dict()
    found["config"] = {**CONFIG, **{key: value for key, value in found.get("config", {}).items() if key != "view"}}
    return _valid(found)


def _valid(part: Any) -> Any:
    if isinstance(part, str):
        return visible(part).translate(NO_XML)
    if isinstance(part, dict):
        return {_valid(key): _valid(value) for key, value in part.items()}
    return [_valid(value) for value in part] if isinstance(part, list) else part


def save_chart(chart: altair.TopLevelMixin | Mapping[str, Any], *paths: Path) -> None:
    """Writes a chart, or its specification, in the format of each path's suffix. The chart is laid out once."""
    import vl_convert

    formats = {path: checked_format(path) for path in paths}
    svg = vl_convert.vegalite_to_svg(_valid(dict(chart)) if isinstance(chart, Mapping) else specification(chart))
    writers: dict[str, Callable[[], bytes]] = {
        ".svg": svg.encode,
        ".png": lambda: _compressed(vl_convert.svg_to_png(svg, scale=SCALE)),
        ".pdf": lambda: vl_convert.svg_to_pdf(without_groups(svg)),
    }
    for path, suffix in formats.items():
        try:
            write_atomically(path, partial(_write_bytes, writers[suffix]()))
        except OSError as error:
            raise FavoritError(f"cannot write {path}: {error.strerror or error}") from None


def _compressed(png: bytes) -> bytes:
    """The same PNG, a third as large: vl-convert hardly compresses."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.save(buffer, "PNG")
    return buffer.getvalue()


def _write_bytes(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def checked_format(path: Path) -> str:
    """The suffix of a path in lower case. Raises an error if no chart can be written in this format."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise FavoritError(f"{path}: unknown format {suffix or 'without suffix'}: use {known}")
    return suffix
