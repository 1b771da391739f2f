"""The figure of `favorit bench crossover`: time and memory of SDPA relative to each mixer, against tokens.

`panels` computes the data, `draw` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from favorit.bench.crossover import CURVES, Point, crossings, ratios

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Panels per row: the first row is time, the second is memory.
COLUMNS = 2


@dataclass(frozen=True)
class Line:
    """One mixer: SDPA / mixer at each token count, and N* if it lies inside the grid."""

    mixer: str
    tokens: tuple[int, ...]
    ratio: tuple[float, ...]
    crossing: float | None


@dataclass(frozen=True)
class Panel:
    """One curve, such as training, for all mixers."""

    curve: str
    lines: tuple[Line, ...]


def panels(points: Sequence[Point]) -> list[Panel]:
    """The data of the figure."""
    inside = {(found.mixer, found.curve): None if found.always else found.tokens for found in crossings(points)}
    return [
        Panel(
            curve,
            tuple(
                Line(mixer, tuple(by_tokens), tuple(by_tokens.values()), inside.get((mixer, curve)))
                for mixer, by_tokens in ratios(points, curve).items()
            ),
        )
        for curve in CURVES
    ]


def draw(content: Sequence[Panel], title: str) -> Figure:
    """One panel per curve, with logarithmic axes. A mixer wins above 1. A ring marks its crossover."""
    from matplotlib.figure import Figure

    rows = -(-len(content) // COLUMNS)
    figure = Figure(figsize=(1.6 + 4.4 * COLUMNS, 0.5 + 3.4 * rows), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for panel, axes in zip(content, grid.flat, strict=True):
        _draw_panel(axes, panel)
    figure.supylabel("SDPA / mixer: above 1 the mixer wins", fontsize=10)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.axhline(1.0, color="#999999", linewidth=1)
    for number, line in enumerate(panel.lines):
        axes.plot(
            line.tokens, line.ratio, color=f"C{number}", linewidth=1.6, marker="o", markersize=3, label=line.mixer
        )
        if line.crossing is not None:
            axes.plot(
                [line.crossing], [1.0], color=f"C{number}", marker="o", markersize=8, markerfacecolor="white", zorder=3
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    ratios_shown = [ratio for line in panel.lines for ratio in line.ratio]
    axes.yaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5) if max(ratios_shown) > 5 * min(ratios_shown) else (1, 1.2, 1.5, 2, 3, 5, 7))
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axes.set_xlabel("tokens")
    axes.set_title(panel.curve, fontsize=11, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
