"""The color of each variant: the same in every figure, readable in print and for the color-blind.

Source of the colors: Okabe and Ito 2008, Color Universal Design, in an order that keeps neighbors apart, without its
yellow, which is too light for lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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


def colors(names: Iterable[str]) -> dict[str, str]:
    """A color for each name, in their order. A name in `FIXED`, alone or before a parenthesis, has its fixed color."""
    found: dict[str, str] = {}
    free = 0
    for name in dict.fromkeys(names):
        fixed = FIXED.get(name) or FIXED.get(re.split(r"[( ]", name)[0])
        if fixed is None or fixed in found.values():
            fixed, free = _next(free, found)
        found[name] = fixed
    return found


def _next(start: int, used: Mapping[str, str]) -> tuple[str, int]:
    """The next color that no name has; colors repeat once all are used. Also returns where to continue."""
    taken = set(used.values())
    for offset in range(len(COLORS)):
        color = COLORS[(start + offset) % len(COLORS)]
        if color not in taken:
            return color, start + offset + 1
    return COLORS[start % len(COLORS)], start + 1
