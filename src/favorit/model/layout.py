"""Layouts: which mixer each layer uses.

A layout is a name in LAYOUTS, or a pattern such as `relu(m=64)|softmax`, which is tiled over the depth.

Source: Bennouna, Yang, Shao, Souaid (report 3 of five).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from favorit.attention import MIXERS
from favorit.errors import FavoritError, unknown_component
from favorit.spec import Spec, parse_pattern

STANDARD = Spec("softmax")

# The first half has floor(depth / 2) layers, as in the report that named these layouts.
LAYOUTS: dict[str, Callable[[Spec, int], list[Spec]]] = {
    "all_standard": lambda performer, depth: [STANDARD] * depth,
    "all_performer": lambda performer, depth: [performer] * depth,
    "intertwined": lambda performer, depth: [STANDARD if layer % 2 else performer for layer in range(depth)],
    "performer_first": lambda performer, depth: [performer] * (depth // 2) + [STANDARD] * (depth - depth // 2),
    "standard_first": lambda performer, depth: [STANDARD] * (depth // 2) + [performer] * (depth - depth // 2),
}


def layers(layout: str, performer: str, depth: int) -> list[Spec]:
    """The mixer of each layer as a canonical spec: its name and parameters are checked, and defaults are omitted."""
    name = layout.strip()
    performer_spec = MIXERS.canonical(performer)
    if name in LAYOUTS:
        return LAYOUTS[name](performer_spec, depth)
    pattern = parse_pattern(layout)
    for spec in pattern:
        if spec.name not in MIXERS:
            raise unknown_component("layout or mixer", spec.name, [*LAYOUTS, *MIXERS])
    if depth % len(pattern):
        raise FavoritError(
            f"layout={layout!r} does not fit depth={depth}: the pattern has {len(pattern)} layers, "
            "and the depth must be a multiple of this"
        )
    return [MIXERS.canonical(spec) for spec in pattern * (depth // len(pattern))]


def shorten(mixers: list[Spec]) -> str:
    """The shortest pattern for these layers: one period, with repeated mixers written as `mixer*count`."""
    texts = [str(spec) for spec in mixers]
    period = next(n for n in range(1, len(texts) + 1) if len(texts) % n == 0 and texts == texts[:n] * (len(texts) // n))
    return write_out(mixers[:period])


def write_out(mixers: list[Spec]) -> str:
    """A pattern of all these layers, with mixers that follow each other written as `mixer*count`."""
    runs = [(text, len(list(group))) for text, group in groupby(map(str, mixers))]
    return "|".join(text if count == 1 else f"{text}*{count}" for text, count in runs)


def tiled(layout: str, performer: str, depth: int) -> str | None:
    """The layers of a pattern of several mixers that is shorter than the depth; None for other layouts."""
    if layout.strip() in LAYOUTS or not 1 < len(parse_pattern(layout)) < depth:
        return None
    return write_out(layers(layout, performer, depth))
