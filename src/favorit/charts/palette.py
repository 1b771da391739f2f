"""Colors, shapes and dashes. A mixer or layout has the same color in every figure; colors are readable in print and
for the color-blind.

Source of the colors: Okabe and Ito 2008, Color Universal Design, in an order that keeps neighbors apart, without its
yellow, which is too light for lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#5E3C99")
BASELINE = "#333333"
CONTROLS = ("#8A8A8A", "#B8B8B8")

# Names that appear in many figures. Baselines are dark gray and controls light gray in all of them.
FIXED = {
    "softmax": BASELINE,
    "all_standard": BASELINE,
    "uniform": CONTROLS[0],
    "none": CONTROLS[1],
    "favor": COLORS[0],
    "relu": COLORS[1],
    "linformer": COLORS[2],
    "elu": COLORS[3],
    "exp": COLORS[4],
    "gelu": COLORS[5],
    "learned": COLORS[6],
    "mixture": COLORS[7],
    "all_performer": COLORS[0],
    "performer_first": COLORS[1],
    "standard_first": COLORS[2],
    "intertwined": COLORS[3],
}

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (4, 2), (1, 3), (10, 4), (3, 1))


@dataclass(frozen=True)
class Look:
    """How a mixer is drawn: the color, the shape of points, and the dashes of lines."""

    color: str
    shape: str
    dash: tuple[int, ...]


def looks(mixers: Iterable[str]) -> dict[str, Look]:
    """The look of each mixer. Mixers that differ only in parameters share a color, and differ in shape and dashes."""
    families: dict[str, list[str]] = {}
    for mixer in dict.fromkeys(mixers):
        families.setdefault(mixer.partition("(")[0], []).append(mixer)
    palette = colors(families)
    return {
        mixer: Look(palette[family], SHAPES[number % len(SHAPES)], DASHES[number % len(DASHES)])
        for family, members in families.items()
        for number, mixer in enumerate(members)
    }


def colors(names: Iterable[str]) -> dict[str, str]:
    """A color for each name, in their order. A name in `FIXED`, alone or before a parenthesis, has its fixed color.

    The other names get the colors that are left, and repeat them once all are used.
    """
    unique = list(dict.fromkeys(names))
    found: dict[str, str] = {}
    for name in unique:
        fixed = FIXED.get(name) or FIXED.get(re.split(r"[( ]", name)[0])
        if fixed is not None and fixed not in found.values():
            found[name] = fixed
    free = [color for color in COLORS if color not in found.values()] or list(COLORS)
    others = [name for name in unique if name not in found]
    found |= {name: free[number % len(free)] for number, name in enumerate(others)}
    return {name: found[name] for name in unique}
