"""Charts as the tests see them: the marks of the specification, and the texts of the drawn picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import vl_convert

from favorit.charts.save import specification

if TYPE_CHECKING:
    import altair

TEXT = "{http://www.w3.org/2000/svg}text"


def drawn_texts(chart: altair.TopLevelMixin) -> list[str]:
    """All texts of the picture, one for each line. Checks that it is drawn, and that no text is cut."""
    svg = vl_convert.vegalite_to_svg(specification(chart))
    assert not re.search(r"NaN|Infinity|undefined|null", re.sub(r"data:image[^\"]*", "", svg)), "a mark without a place"
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert 50 < width < 4000
    assert 50 < height < 4000
    found = []
    for x, y, text in _placed_texts(root, 0.0, 0.0):
        assert -1 <= x <= width, text
        assert -1 <= y <= height, text
        found.append(text)
    assert not any("\u2026" in text for text in found), "a text is cut"
    return found


def _placed_texts(element: ElementTree.Element, x: float, y: float) -> Iterator[tuple[float, float, str]]:
    """(x, y, text) of each line of text."""
    for move in re.findall(r"translate\(([^,]+),([^)]+)\)", element.get("transform", "")):
        x, y = x + float(move[0]), y + float(move[1])
    if element.tag == TEXT:
        for text in [element.text, *(line.text for line in element)]:
            if text:
                yield x, y, text
        return
    for child in element:
        yield from _placed_texts(child, x, y)


def marks(chart: altair.TopLevelMixin) -> list[dict[str, Any]]:
    """The marks of a chart in the order of drawing: their type, options, encodings and rows of data."""
    whole = specification(chart)
    return list(_marks(whole, {}, whole.get("datasets", {})))


def _marks(part: dict[str, Any], data: dict[str, Any], tables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    data = part.get("data", data)
    if "mark" in part:
        rows = tables[data["name"]] if "name" in data else data.get("values", [])
        yield {**part["mark"], "encoding": part.get("encoding", {}), "rows": rows}
    for name in ("layer", "hconcat", "vconcat"):
        for each in part.get(name, ()):
            yield from _marks(each, data, tables)
