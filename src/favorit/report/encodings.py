"""Encodings that charts share: the color, shape and label of a variant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair

    from favorit.report.style import Style


def label_expression(styles: Mapping[str, Style]) -> str:
    """A Vega expression that turns the name of a variant, `datum.label`, into its label."""
    texts = json.dumps({name: style.label for name, style in styles.items()})
    return f"{texts}[datum.label] || datum.label"


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
