"""The figure of `favorit bench approximation`: error against m, in small multiples by std and kernel.

`panels` computes the data, `draw` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from favorit.bench.approximation import UNIFORM, Point
from favorit.spec import Spec, parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Errors above this multiple of uniform's error lie outside the panel, because signed features have unbounded errors.
MAX_RELATIVE_ERROR = 5.0
# By whether the rows of random features are orthogonal.
COLORS = {True: "#3b6fb5", False: "#e07a2f"}
STYLES: dict[bool, Literal["-", ":"]] = {True: "-", False: ":"}
MOST_TICKS = 4
TITLE_LETTERS = 27
MIN_WIDTH = 6.5  # inches


@dataclass(frozen=True)
class Curve:
    """The error of one kernel at each `m`, with quartiles. A kernel without m has an empty `m` and one error.

    Kernels of one `family` differ only in `orthogonal`.
    """

    kernel: str
    family: str
    orthogonal: bool
    m: tuple[int, ...]
    error: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """All curves at one standard deviation of q and k, and the error of uniform averaging."""

    std: float
    uniform: float
    curves: tuple[Curve, ...]


def panels(points: Sequence[Point]) -> list[Panel]:
    """The data of the figure, in the order of the points."""
    found = []
    for baseline in (point for point in points if point.kernel == UNIFORM):
        here = [point for point in points if point.std == baseline.std and point.kernel != UNIFORM]
        names = dict.fromkeys(point.kernel for point in here)
        found.append(Panel(baseline.std, baseline.error, tuple(_curve(name, here) for name in names)))
    return found


def _curve(kernel: str, points: Sequence[Point]) -> Curve:
    spec = parse(kernel)
    family = Spec(spec.name, spec.args, {key: value for key, value in spec.kwargs.items() if key != "orthogonal"})
    ordered = sorted((point for point in points if point.kernel == kernel), key=lambda point: point.m or 0)
    return Curve(
        kernel=kernel,
        family=str(family),
        orthogonal=spec.kwargs.get("orthogonal", True),
        m=tuple(point.m for point in ordered if point.m is not None),
        error=tuple(point.error for point in ordered),
        low=tuple(point.low for point in ordered),
        high=tuple(point.high for point in ordered),
    )


def draw(content: Sequence[Panel], title: str) -> Figure:
    """Small multiples with shared axes: a row per std, a column per family, a last one for all kernels without m.

    Errors are relative to that of uniform averaging, which is the dashed line at 1. Quartiles are shaded.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    families = list(dict.fromkeys(curve.family for panel in content for curve in panel.curves if curve.m))
    columns = [*families, *([None] if any(not curve.m for panel in content for curve in panel.curves) else [])]
    width = max(MIN_WIDTH, 1.2 + 2.3 * len(columns))
    figure = Figure(figsize=(width, 1.2 + 1.9 * len(content)), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    grid = figure.subplots(len(content), len(columns), squeeze=False, sharex="col", sharey=True)
    for panel, row in zip(content, grid, strict=True):
        row[0].set_ylabel(f"std of q, k: {panel.std:g}\nrelative error", fontsize=10)
        for family, axes in zip(columns, row, strict=True):
            axes.axhline(1.0, color="black", linestyle="--", linewidth=1.2)
            if family is None:
                _draw_without_m(axes, panel)
            else:
                _draw_family(axes, panel, family)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].annotate(
            f"uniform: error {panel.uniform:.2g}",
            (0.03, 1.0),
            xycoords=("axes fraction", "data"),
            xytext=(0, -3),
            textcoords="offset points",
            va="top",
            fontsize=8.5,
        )
    for family, axes in zip(columns, grid[0], strict=True):
        axes.set_title(fill(family or "kernels without m", TITLE_LETTERS), fontsize=10.5, loc="left")
    for family, axes in zip(columns, grid[-1], strict=True):
        axes.set_xlabel("" if family is None else "features m")
    _scale(grid[0, 0], content)
    lines = [
        Line2D([], [], color=COLORS[orthogonal], linestyle=STYLES[orthogonal], marker="o", markersize=4, label=label)
        for orthogonal, label in ((True, "orthogonal rows"), (False, "independent rows"))
        if any(curve.m and curve.orthogonal == orthogonal for panel in content for curve in panel.curves)
    ]
    lines.append(Line2D([], [], color="black", linestyle="--", label="uniform averaging: relative error 1"))
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=10)
    return figure


def _draw_family(axes: Axes, panel: Panel, family: str) -> None:
    curves = [curve for curve in panel.curves if curve.family == family and curve.m]
    for curve in curves:
        color = COLORS[curve.orthogonal]
        error, low, high = (
            [value / panel.uniform for value in values] for values in (curve.error, curve.low, curve.high)
        )
        style = STYLES[curve.orthogonal]
        axes.plot(curve.m, error, color=color, linestyle=style, marker="o", markersize=3.5, linewidth=1.6)
        axes.fill_between(curve.m, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    counts = sorted({m for curve in curves for m in curve.m})
    shown = counts[:: -(-len(counts) // MOST_TICKS)]
    axes.set_xticks(shown, [str(m) for m in shown])
    axes.minorticks_off()
    smallest = min(error for curve in curves for error in curve.error) / panel.uniform
    if smallest >= MAX_RELATIVE_ERROR:
        text = f"above the panel:\n{smallest:,.0f}x or more"
        axes.text(0.5, 0.9, text, transform=axes.transAxes, fontsize=9, ha="center", va="top")


def _draw_without_m(axes: Axes, panel: Panel) -> None:
    curves = [curve for curve in panel.curves if not curve.m]
    for place, curve in enumerate(curves):
        error, low, high = curve.error[0], curve.low[0], curve.high[0]
        spread = [[(error - low) / panel.uniform], [(high - error) / panel.uniform]]
        axes.errorbar(place, error / panel.uniform, yerr=spread, color=COLORS[True], marker="o", markersize=5)
    axes.set_xticks(range(len(curves)), [curve.kernel for curve in curves], rotation=30, ha="right", fontsize=9)
    axes.set_xlim(-0.6, len(curves) - 0.4)


def _scale(axes: Axes, content: Sequence[Panel]) -> None:
    """Sets the logarithmic y axis, which all panels share."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    relative = [error / panel.uniform for panel in content for curve in panel.curves for error in curve.error]
    shown = [1.0, *(error for error in relative if 0 < error < MAX_RELATIVE_ERROR)]
    axes.set_yscale("log")
    axes.set_ylim(0.8 * min(shown), 1.25 * max(shown))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
