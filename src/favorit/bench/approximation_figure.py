"""The figure of `favorit bench approximation`: error against m, in small multiples by std and kernel.

`panels` computes the data, `draw` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from favorit.bench.approximation import UNIFORM, Point
from favorit.charts.axes import NUMBER, log_ticks, look_of, panel_title, titled
from favorit.charts.palette import DASHES, FIXED, SHAPES, Look, colors
from favorit.spec import Spec, parse

if TYPE_CHECKING:
    import altair
    import pandas

# Errors above this multiple of uniform's error lie outside the panel, because signed features have unbounded errors.
MAX_RELATIVE_ERROR = 5.0
ORTHOGONAL, INDEPENDENT, BASELINE = "orthogonal rows", "independent rows", "uniform averaging: relative error 1"
# The color of a curve stands for its kernel.
LOOKS = {
    ORTHOGONAL: Look("black", SHAPES[0], DASHES[0]),
    INDEPENDENT: Look("black", SHAPES[3], DASHES[2]),
    BASELINE: Look(FIXED[UNIFORM], SHAPES[0], DASHES[1]),
}
WITHOUT_M = "kernels without m"
MOST_TICKS = 4
TITLE_LETTERS = 30
WIDTH, HEIGHT = 190, 140  # of a panel
MARGIN = 1.1  # the factor by which the axis of m exceeds the counts


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


def error_table(content: Sequence[Panel]) -> pandas.DataFrame:
    """std, kernel, family, rows (orthogonal or independent), m (empty for a kernel without), and error, low and high
    relative to the error of uniform averaging.
    """
    import pandas

    return pandas.DataFrame(
        [
            dict(
                std=panel.std,
                kernel=curve.kernel,
                family=curve.family,
                rows=ORTHOGONAL if curve.orthogonal else INDEPENDENT,
                m=m,
                error=error / panel.uniform,
                low=low / panel.uniform,
                high=high / panel.uniform,
            )
            for panel in content
            for curve in panel.curves
            for m, error, low, high in zip(curve.m or (None,), curve.error, curve.low, curve.high, strict=True)
        ]
    )


def draw(content: Sequence[Panel], title: str) -> altair.VConcatChart:
    """Small multiples with shared axes: a row per std, a column per family, a last one for all kernels without m.

    Errors are relative to that of uniform averaging, which is the dashed line at 1. Quartiles are shaded.
    """
    import altair as alt

    table = error_table(content)
    palette = colors(name.partition("(")[0] for name in table["kernel"])
    table["color"] = [palette[name.partition("(")[0]] for name in table["kernel"]]
    table["shape"] = [LOOKS[rows].shape for rows in table["rows"]]
    families = table[table["m"].notna()].groupby("family", sort=False)
    columns = {str(name): part for name, part in families}
    if table["m"].isna().any():
        columns[WITHOUT_M] = table[table["m"].isna()]
    rows = []
    for panel in content:
        charts: list[altair.LayerChart | altair.FacetChart] = []
        for name, part in columns.items():
            is_first = not charts
            y = _y_axis(table, [f"std of q, k: {panel.std:g}", "relative error"] if is_first else None)
            chart = _draw_panel(
                part[part["std"] == panel.std],
                _x_axis(part, panel is content[-1]),
                y,
                note=f"uniform: error {panel.uniform:.2g}" if is_first else "",
            )
            if panel is content[0]:
                chart = chart.properties(title=panel_title(wrap(name, TITLE_LETTERS)))
            charts.append(chart)
        rows.append(alt.hconcat(*charts, spacing=24, bounds="flush"))
    return titled(alt.vconcat(*rows, spacing=14), title)


def _y_axis(table: pandas.DataFrame, title: list[str] | None) -> altair.Y:
    """The logarithmic axis that all panels share; without a title it has no labels."""
    import altair as alt

    shown = table["error"][(table["error"] > 0) & (table["error"] < MAX_RELATIVE_ERROR)]
    low, high = 0.8 * min(1.0, *shown), 1.25 * max(1.0, *shown)
    scale = alt.Scale(type="log", domain=(low, high), nice=False)
    axis = alt.Axis(values=log_ticks(low, high), format=NUMBER, labels=title is not None)
    return alt.Y("error:Q", title=title, scale=scale, axis=axis)


def _x_axis(part: pandas.DataFrame, is_last: bool) -> altair.X:
    """The axis of one column of panels: m, or the kernels without m. Only the last row has labels."""
    import altair as alt

    if part["m"].isna().all():
        names = list(part["kernel"].unique())
        return alt.X("kernel:N", sort=names, title=None, axis=alt.Axis(labelAngle=-30, labels=is_last))
    counts = sorted(part["m"].astype(int).unique().tolist())
    axis = alt.Axis(values=counts[:: -(-len(counts) // MOST_TICKS)], format="d", labels=is_last)
    scale = alt.Scale(type="log", base=2, domain=(counts[0] / MARGIN, counts[-1] * MARGIN), nice=False)
    return alt.X("m:Q", title="features m" if is_last else None, scale=scale, axis=axis)


def _draw_panel(part: pandas.DataFrame, x: altair.X, y: altair.Y, note: str) -> altair.LayerChart | altair.FacetChart:
    """The errors of one column at one std, and the line of uniform averaging with a note below it."""
    import altair as alt
    import pandas

    dash = look_of("rows", LOOKS, ["strokeDash"], symbolType="stroke", symbolStrokeWidth=1.8, symbolSize=400)
    level = alt.Chart(pandas.DataFrame({"error": [1.0], "rows": [BASELINE]}))
    points = alt.Chart(part).encode(x=x, color=alt.Color("color:N", scale=None))
    layers = [
        level.mark_rule(color=LOOKS[BASELINE].color, strokeWidth=1.5).encode(y=y, **dash),
        level.mark_text(text=note, align="left", dy=9).encode(x=alt.value(4), y=y),
        points.mark_point(size=28, opacity=1, clip=True).encode(y=y, shape=alt.Shape("shape:N", scale=None)),
    ]
    interval = {"y": alt.Y("low:Q"), "y2": "high:Q"}
    if part["m"].nunique() < 2:
        layers.append(points.mark_rule(clip=True).encode(**interval))
    else:
        layers.append(points.mark_area(opacity=0.2, clip=True).encode(detail="rows:N", **interval))
        layers.append(points.mark_line(clip=True).encode(y=y, **dash))
    if part["error"].min() >= MAX_RELATIVE_ERROR:
        text = ["above the panel:", f"{part['error'].min():,.0f}x or more"]
        layers.append(level.mark_text(text=text).encode(x=alt.value(WIDTH / 2), y=alt.value(14)))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
