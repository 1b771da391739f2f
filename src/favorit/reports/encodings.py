"""Encodings that charts share: the color, shape and label of a variant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from favorit.charts.palette import colors

if TYPE_CHECKING:
    import altair
    import pandas

    from favorit.reports.style import Style


def label_expression(styles: Mapping[str, Style]) -> str:
    """A Vega expression that turns the name of a variant, `datum.label`, into its label."""
    texts = json.dumps({name: style.label for name, style in styles.items()})
    return f"{texts}[datum.label] || datum.label"


def percent(channel: Any, field: str, title: str, **options: Any) -> Any:
    """A position (`altair.X` or `altair.Y`) in percent, with as many decimals as its ticks need; it may not start at
    zero, so it is for points and lines only.
    """
    import altair as alt

    axis = alt.Axis(format="%", tickCount=6)
    return channel(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(zero=False, padding=10), **options)


def line_legend(styles: Mapping[str, Style]) -> altair.Legend:
    """A legend of variants whose symbols are lines."""
    import altair as alt

    return alt.Legend(
        title=None,
        labelExpr=label_expression(styles),
        symbolType="stroke",
        symbolOpacity=1,
        symbolStrokeWidth=2,
        symbolSize=300,
    )


def color_of_variant(names: Sequence[str], styles: Mapping[str, Style], **options: Any) -> altair.Color:
    """The color of each variant; the legend shows labels. `options` are those of `altair.Color`."""
    import altair as alt

    scale = alt.Scale(domain=list(names), range=[styles[name].color for name in names])
    options.setdefault("legend", alt.Legend(title=None, labelExpr=label_expression(styles)))
    return alt.Color("variant:N", scale=scale, sort=list(names), **options)


def shape_of_variant(names: Sequence[str], styles: Mapping[str, Style], **options: Any) -> altair.Shape:
    """The shape of each variant, for points."""
    import altair as alt

    scale = alt.Scale(domain=list(names), range=[styles[name].shape for name in names])
    options.setdefault("legend", alt.Legend(title=None, labelExpr=label_expression(styles)))
    return alt.Shape("variant:N", scale=scale, sort=list(names), **options)


def dash_of_variant(names: Sequence[str], styles: Mapping[str, Style], **options: Any) -> altair.StrokeDash:
    """The dashes of each variant, for lines."""
    import altair as alt

    scale = alt.Scale(domain=list(names), range=[list(styles[name].dash) for name in names])
    options.setdefault("legend", alt.Legend(title=None, labelExpr=label_expression(styles)))
    return alt.StrokeDash("variant:N", scale=scale, sort=list(names), **options)


# Layouts from the baseline to the controls, the order of every figure.
LAYOUT_ORDER = (
    "all_standard",
    "performer_first",
    "intertwined",
    "standard_first",
    "all_performer",
    "uniform",
    "none",
)


def fixed_color(field: str, data: pandas.DataFrame, **options: Any) -> altair.Color:
    """The color of each value of a field such as layout or kernel, as in every other figure."""
    import altair as alt

    names = list(dict.fromkeys(data[field].dropna()))
    palette = colors(names)
    scale = alt.Scale(domain=names, range=[palette[name] for name in names])
    return alt.Color(f"{field}:N", scale=scale, title=options.pop("title", field), **options)
