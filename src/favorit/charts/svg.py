"""Rewrites SVG for the conversion to PDF."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

NAMESPACE = "http://www.w3.org/2000/svg"
INHERITED = ("fill", "stroke-miterlimit")  # attributes of Vega's groups that apply to their members
WHOLE = {"clip-path", "opacity", "display", "style"}  # a group with one of these is kept


def without_groups(svg: str) -> str:
    """The same picture with fewer nested groups: their members have their transforms and styles.

    The converter to PDF fails if graphics states are nested more than 28 times, as in charts within charts.
    """
    ElementTree.register_namespace("", NAMESPACE)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(svg)
    root[:] = [member for child in root for member in _members(child, {}, "")]
    return ElementTree.tostring(root, encoding="unicode")


def _members(element: Element, style: Mapping[str, str], transform: str) -> Iterator[Element]:
    """The element, or the members of a group, with the style and transform of the groups around it."""
    if element.tag == f"{{{NAMESPACE}}}defs":
        yield element
        return
    transform = f"{transform} {element.get('transform', '')}".strip()
    style = {**style, **{name: value for name, value in element.attrib.items() if name in INHERITED}}
    if element.tag == f"{{{NAMESPACE}}}g" and not WHOLE & set(element.attrib):
        for child in element:
            yield from _members(child, style, transform)
        return
    element.attrib.update(style)
    if transform:
        element.set("transform", transform)
    yield element
