"""The figure of `favorit bench approximation`: error against m, one panel per std.

`panels` computes the data, `draw` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from favorit.bench.approximation import UNIFORM, Point
from favorit.spec import Spec, parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Errors above this multiple of uniform's error lie outside the panel, because signed features have unbounded errors.
MAX_RELATIVE_ERROR = 5.0


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
    """One panel per std, with logarithmic axes: orthogonal rows solid, independent rows dotted, uniform averaging
    dashed.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(1.2 + 4.6 * len(content), 5.2), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    families = {curve.family: curve for panel in content for curve in panel.curves}
    colors = {family: f"C{number}" for number, family in enumerate(families)}
    for number, (panel, axes) in enumerate(
        zip(content, figure.subplots(1, len(content), squeeze=False)[0], strict=True)
    ):
        _draw_panel(axes, panel, colors)
        if number == 0:
            axes.set_ylabel("error of the attention output\n|w v - softmax v| / |softmax v|")
    lines = [
        Line2D([], [], color=colors[family], marker="o" if curve.m else "", markersize=4, label=family)
        for family, curve in families.items()
    ]
    lines.append(Line2D([], [], color="black", linestyle="--", label="uniform averaging"))
    if any(not curve.orthogonal for panel in content for curve in panel.curves):
        lines.append(Line2D([], [], color="gray", label="orthogonal rows"))
        lines.append(Line2D([], [], color="gray", linestyle=":", label="independent rows"))
    figure.legend(handles=lines, loc="outside right center", frameon=False, fontsize=9)
    return figure


def _draw_panel(axes: Axes, panel: Panel, colors: dict[str, str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for curve in panel.curves:
        color = colors[curve.family]
        if curve.m:
            style = "-" if curve.orthogonal else ":"
            axes.plot(curve.m, curve.error, color=color, linestyle=style, marker="o", markersize=3.5, linewidth=1.6)
            axes.fill_between(curve.m, curve.low, curve.high, color=color, alpha=0.12, linewidth=0)
        else:
            axes.axhline(curve.error[0], color=color, linewidth=1.2)
    axes.axhline(panel.uniform, color="black", linestyle="--", linewidth=1.4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    counts = sorted({m for curve in panel.curves for m in curve.m})
    if counts:
        axes.set_xticks(counts, [str(m) for m in counts])
    shown = [error for curve in panel.curves for error in curve.error if 0 < error < MAX_RELATIVE_ERROR * panel.uniform]
    low, high = 0.8 * min([panel.uniform, *shown]), 1.3 * max([panel.uniform, *shown])
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("features m")
    axes.set_title(f"q, k of standard deviation {panel.std:g}", fontsize=11, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    outside = {curve.family for curve in panel.curves if min(curve.error) >= MAX_RELATIVE_ERROR * panel.uniform}
    if outside:
        axes.text(
            0.03,
            0.97,
            f"outside the panel: {', '.join(sorted(outside))}",
            transform=axes.transAxes,
            fontsize=9,
            va="top",
        )
