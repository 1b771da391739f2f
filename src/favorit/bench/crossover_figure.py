"""The figure of `favorit bench crossover`: time and memory of SDPA relative to each mixer, against tokens.

`panels` computes the data, `draw` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from favorit.bench.crossover import CURVES, SOFTMAX, Crossing, Point, find_crossing, ratios

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Panels per row: the first row is time, the second is memory.
COLUMNS = 2
WIDTH = 9.2  # inches
LEGEND_MARK, LEGEND_LETTER = 0.6, 0.09  # inches that an entry of the legend needs
TITLES = {
    "forward": "forward time: above 1 the mixer is faster",
    "training": "training time: above 1 the mixer is faster",
    "forward memory": "forward memory: above 1 the mixer needs less",
    "training memory": "training memory: above 1 the mixer needs less",
}


@dataclass(frozen=True)
class Line:
    """One mixer: SDPA / mixer at each token count with its interval, and its crossing; softmax has none."""

    mixer: str
    tokens: tuple[int, ...]
    ratio: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    crossing: Crossing | None


@dataclass(frozen=True)
class Panel:
    """One curve, such as training, for all mixers."""

    curve: str
    lines: tuple[Line, ...]


def panels(points: Sequence[Point]) -> list[Panel]:
    """The data of the figure."""
    return [
        Panel(
            curve,
            tuple(
                Line(
                    mixer,
                    tuple(by_tokens),
                    tuple(each.value for each in by_tokens.values()),
                    tuple(each.low for each in by_tokens.values()),
                    tuple(each.high for each in by_tokens.values()),
                    None if mixer == SOFTMAX else find_crossing(mixer, curve, by_tokens),
                )
                for mixer, by_tokens in ratios(points, curve).items()
            ),
        )
        for curve in CURVES
    ]


def draw(content: Sequence[Panel], title: str) -> Figure:
    """One panel per curve, with logarithmic axes that each row shares. A mixer wins above 1.

    Shaded areas are intervals. A ring marks the crossover of a mixer, a thick line the range of this crossover.
    """
    from matplotlib.figure import Figure

    rows = -(-len(content) // COLUMNS)
    names = [line.mixer for line in content[0].lines]
    columns = max(1, int(WIDTH / (LEGEND_MARK + LEGEND_LETTER * max(map(len, names)))))
    figure = Figure(figsize=(WIDTH, 0.7 + 0.25 * -(-len(names) // columns) + 2.9 * rows), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left", wrap=True)
    grid = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey="row")
    for panel, axes in zip(content, grid.flat, strict=True):
        _draw_panel(axes, panel)
    for row in grid:
        row[0].set_ylabel("SDPA / mixer")
    for axes in grid[-1]:
        axes.set_xlabel("tokens")
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(columns, len(names)),
        frameon=False,
        fontsize=10,
    )
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.axhline(1.0, color="#999999", linewidth=1)
    for number, line in enumerate(panel.lines):
        color = f"C{number}"
        axes.plot(line.tokens, line.ratio, color=color, linewidth=1.6, marker="o", markersize=3, label=line.mixer)
        axes.fill_between(line.tokens, line.low, line.high, color=color, alpha=0.2, linewidth=0)
        crossing = line.crossing
        if crossing is not None and crossing.tokens is not None and not crossing.always:
            ends = (crossing.low or line.tokens[0], crossing.high or line.tokens[-1])
            axes.plot(ends, [1.0, 1.0], color=color, linewidth=4, alpha=0.5, solid_capstyle="butt")
            axes.plot(
                [crossing.tokens], [1.0], color=color, marker="o", markersize=7, markerfacecolor="white", zorder=3
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    low, high = axes.get_ylim()  # of the row so far
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 5 * low else (1, 1.2, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axes.set_title(TITLES[panel.curve], fontsize=10.5, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
