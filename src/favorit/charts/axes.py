"""Titles, ticks and encodings that charts share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from favorit.charts.palette import Look

if TYPE_CHECKING:
    import altair

Chart = TypeVar("Chart", bound="altair.TopLevelMixin")

NUMBER = ".3~g"  # three digits without trailing zeros
MOST_DECADES = 5
LEGEND_MARK, LEGEND_LETTER = 46, 6.5  # points that an entry of a legend needs


def titled(chart: Chart, title: str) -> Chart:
    """The chart with a title; lines after the first are smaller."""
    import altair as alt

    first, *others = title.split("\n")
    return chart.properties(title=alt.TitleParams(first, subtitle=others))


def panel_title(text: str | Sequence[str]) -> altair.TitleParams:
    """The title of one panel of a chart."""
    import altair as alt

    return alt.TitleParams(text, fontSize=12, fontWeight="normal", frame="group", offset=6)


def log_ticks(low: float, high: float) -> list[float]:
    """The labeled values of a logarithmic axis from `low` to `high`: 1, 2, 5, 10 and so on; more of them on a short
    axis, powers of ten on a long one.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    powers = [float(f"1e{exponent}") for exponent in decades if low <= float(f"1e{exponent}") <= high]
    if len(powers) > MOST_DECADES:
        return powers[:: -(-len(powers) // MOST_DECADES)]
    steps = (1, 2, 5) if high > 5 * low else (1, 1.2, 1.5, 2, 3, 5, 7)
    values = (float(f"{step}e{exponent}") for exponent in decades for step in steps)
    return [value for value in values if low <= value <= high]


def powers_of_two(low: float, high: float) -> list[int]:
    """The powers of two from `low` to `high`, the labels of an axis of counts; `low` and `high` if there are none."""
    found = [2**exponent for exponent in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    return found or sorted({round(low), round(high)})


def look_of(field: str, looks: Mapping[str, Look], channels: Sequence[str], **legend: Any) -> dict[str, Any]:
    """Encodings of `field` as in `looks`: of `color`, `shape` and `strokeDash`, with one legend below the chart."""
    import altair as alt

    part = {"color": "color", "shape": "shape", "strokeDash": "dash"}
    options = {
        "title": None,
        "orient": "bottom",
        "symbolOpacity": 1,
        "symbolSize": 70,
        "symbolStrokeWidth": 0,
        **legend,
    }
    return {
        channel: {
            "field": field,
            "type": "nominal",
            "sort": list(looks),
            "scale": alt.Scale(domain=list(looks), range=[getattr(look, part[channel]) for look in looks.values()]),
            "legend": alt.Legend(**options),
        }
        for channel in channels
    }


def legend_columns(names: Iterable[str], width: float) -> int:
    """The number of entries in a row of a legend of this width."""
    return max(1, int(width / (LEGEND_MARK + LEGEND_LETTER * max(map(len, names), default=0))))
