"""The figure of `favorit bench crossover`: time and memory of SDPA relative to each mixer, against tokens.

`panels` computes the data, `draw` draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from favorit.bench.crossover import CURVES, SOFTMAX, Crossing, Point, find_crossing, ratios
from favorit.charts.axes import NUMBER, legend_columns, log_ticks, look_of, panel_title, powers_of_two, titled
from favorit.charts.palette import Look, looks

if TYPE_CHECKING:
    import altair
    import pandas

# Panels per row: the first row is time, the second is memory.
COLUMNS = 2
WIDTH, HEIGHT = 390, 210  # of a panel
LEVEL = "#999999"
MARGIN = 1.15  # the factor by which axes exceed the data
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


def draw(content: Sequence[Panel], title: str) -> altair.VConcatChart:
    """One panel per curve, with logarithmic axes that each row shares. A mixer wins above 1.

    Shaded areas are intervals. A ring marks the crossover of a mixer, a thick line the range of this crossover.
    """
    import altair as alt

    styles = looks(line.mixer for line in content[0].lines)
    rows = [content[start : start + COLUMNS] for start in range(0, len(content), COLUMNS)]
    charts = [alt.hconcat(*(_draw_panel(panel, row, styles) for panel in row)) for row in rows]
    return titled(alt.vconcat(*charts), title)


def _draw_panel(
    panel: Panel, row: Sequence[Panel], styles: Mapping[str, Look]
) -> altair.LayerChart | altair.FacetChart:
    """The panel with axes that fit its whole row."""
    import altair as alt
    import pandas

    lines = [line for each in row for line in each.lines]
    tokens = [count for line in lines for count in line.tokens]
    values = [1.0, *(value for line in lines for value in (*line.low, *line.high))]
    low, high = min(values) / MARGIN, max(values) * MARGIN
    x = alt.X(
        "tokens:Q",
        title="tokens",
        scale=alt.Scale(type="log", base=2, domain=(min(tokens) / MARGIN, max(tokens) * MARGIN), nice=False),
        axis=alt.Axis(values=powers_of_two(min(tokens), max(tokens)), format="d"),
    )
    y = alt.Y(
        "ratio:Q",
        title="SDPA / mixer",
        scale=alt.Scale(type="log", domain=(low, high), nice=False),
        axis=alt.Axis(values=log_ticks(low, high), format=NUMBER),
    )
    look = partial(look_of, "mixer", styles, columns=legend_columns(styles, COLUMNS * WIDTH))
    color = look(["color"])
    points = alt.Chart(ratio_table(panel)).encode(x=x, **color)
    layers = [
        alt.Chart(pandas.DataFrame({"ratio": [1.0]})).mark_rule(color=LEVEL).encode(y=y),
        points.mark_area(opacity=0.2).encode(y=alt.Y("low:Q"), y2="high:Q"),
        points.mark_line().encode(y=y, **look(["strokeDash"])),
        points.mark_point(size=28, opacity=1).encode(y=y, **look(["shape"])),
    ]
    found = crossing_table(panel)
    if len(found):
        rings = alt.Chart(found).encode(x=x, y=y, **color)
        layers += [
            rings.mark_rule(strokeWidth=5, opacity=0.5).encode(x=alt.X("low:Q"), x2="high:Q"),
            rings.mark_point(shape="circle", filled=False, fill="white", size=80, strokeWidth=2, opacity=1),
        ]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=panel_title(TITLES[panel.curve]))


def ratio_table(panel: Panel) -> pandas.DataFrame:
    """mixer, tokens, ratio, low and high: a row for each point of the panel's lines."""
    import pandas

    return pandas.DataFrame(
        [
            dict(mixer=line.mixer, tokens=tokens, ratio=ratio, low=low, high=high)
            for line in panel.lines
            for tokens, ratio, low, high in zip(line.tokens, line.ratio, line.low, line.high, strict=True)
        ]
    )


def crossing_table(panel: Panel) -> pandas.DataFrame:
    """mixer, tokens, ratio (1), low and high: a row for each crossing on the grid, with the range of its tokens."""
    import pandas

    return pandas.DataFrame(
        [
            dict(
                mixer=line.mixer,
                tokens=crossing.tokens,
                ratio=1.0,
                low=crossing.low or line.tokens[0],
                high=crossing.high or line.tokens[-1],
            )
            for line in panel.lines
            if (crossing := line.crossing) is not None and crossing.tokens is not None and not crossing.always
        ]
    )
