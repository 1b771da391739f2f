"""The figure of `favorit doctor`: maps of layers x heads. `grids` computes the data, `draw` draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from favorit.bench.approximation import UNIFORM
from favorit.bench.doctor.advice import MIN_EFFECT, ROUNDING
from favorit.bench.doctor.layer_stats import OWN, SWEPT, Finding
from favorit.charts.axes import NUMBER, panel_title, titled
from favorit.spec import parse

if TYPE_CHECKING:
    import altair
    import pandas

Grid = tuple[tuple[float, ...], ...]

# The color scale ends at a tenth of uniform's error and at ten times uniform's error.
MAX_RATIO = 10.0
DARK = 0.6  # share of the scale, from its middle, beyond which colors are dark
IDLE = "#d8d8d8"
OWN_TITLE, BOUNDS_TITLE = "own mixers: error / uniform's", "mean of |q||k|/sqrt(D)"
MAP_WIDTH, CELL_WIDTH, CELL_HEIGHT = 240, 50, 40


@dataclass(frozen=True)
class Grids:
    """Rows are layers, columns are heads.

    `own` and `relative` are the errors of the model's own mixers and of `kernel`, divided by the error of uniform
    averaging. `own` is None if all mixers are softmax. `logit_bounds` are means of |q||k|/sqrt(D). `idle` marks heads
    in which uniform averaging changes the output so little that the ratios are meaningless.
    """

    kernel: str
    mixers: tuple[str, ...]
    own: Grid | None
    relative: Grid
    logit_bounds: Grid
    idle: tuple[tuple[bool, ...], ...]


def grids(findings: Sequence[Finding]) -> Grids:
    """The data of the figure."""
    whole = [finding for finding in findings if finding.head is None]
    swept = [name for name in whole[0].errors if parse(name).name == SWEPT]
    kernel = max(swept, key=lambda name: parse(name).kwargs["m"])
    rows = [
        [finding for finding in findings if finding.layer == layer.layer and finding.head is not None]
        for layer in whole
    ]

    def relative(name: str) -> Grid:
        return tuple(tuple(head.errors[name] / max(head.errors[UNIFORM], 1e-9) for head in row) for row in rows)

    return Grids(
        kernel=kernel,
        mixers=tuple(layer.mixer for layer in whole),
        own=relative(OWN) if any(layer.errors[OWN] >= ROUNDING for layer in whole) else None,
        relative=relative(kernel),
        logit_bounds=tuple(tuple(head.logit_bound for head in row) for row in rows),
        idle=tuple(tuple(head.errors[UNIFORM] < MIN_EFFECT for head in row) for row in rows),
    )


def cell_table(content: Grids) -> dict[str, pandas.DataFrame]:
    """map -> layer, head, value, text (the value; empty in idle cells of errors) and is_dark, whether the text is
    white.
    """
    import pandas

    layers = [f"{number}: {mixer}" for number, mixer in enumerate(content.mixers, 1)]
    nowhere = tuple((False,) * len(row) for row in content.idle)
    errors = {OWN_TITLE: content.own, f"{content.kernel}: error / uniform's": content.relative}
    largest = max(max(row) for row in content.logit_bounds)
    maps = [(name, values, content.idle, _is_dark_ratio) for name, values in errors.items() if values is not None]
    maps.append((BOUNDS_TITLE, content.logit_bounds, nowhere, lambda value: value > 0.55 * largest))
    return {
        name: pandas.DataFrame(
            [
                dict(layer=layer, head=head, value=value, text="" if gray else _short(value), is_dark=is_dark(value))
                for layer, row, idle in zip(layers, values, grays, strict=True)
                for head, (value, gray) in enumerate(zip(row, idle, strict=True), 1)
            ]
        )
        for name, values, grays, is_dark in maps
    }


def _is_dark_ratio(value: float) -> bool:
    """True if the color of this ratio is dark: near the ends of the scale."""
    return not MAX_RATIO**-DARK < value < MAX_RATIO**DARK


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def draw(content: Grids, title: str) -> altair.HConcatChart:
    """The maps side by side, with the value in each cell that is not idle."""
    import altair as alt

    tables = cell_table(content)
    ratio = alt.Scale(type="log", domain=(1 / MAX_RATIO, MAX_RATIO), scheme="redblue", reverse=True, clamp=True)
    bound = alt.Scale(domain=(0, max(max(row) for row in content.logit_bounds)), scheme="blues")
    maps = [
        _draw_map(table, name, bound if name == BOUNDS_TITLE else ratio, is_first=number == 0)
        for number, (name, table) in enumerate(tables.items())
    ]
    note = f"\ngray: averaging all values changes the output by less than {MIN_EFFECT:.0%}"
    has_idle = any(any(row) for row in content.idle)
    return titled(alt.hconcat(*maps).resolve_scale(color="independent"), title + note * has_idle)


def _draw_map(table: pandas.DataFrame, title: str, scale: altair.Scale, is_first: bool) -> altair.LayerChart:
    """Cells colored by value, with the value in each; cells without text are gray."""
    import altair as alt

    layers, heads = list(table["layer"].unique()), table["head"].max()
    base = alt.Chart(table).encode(
        x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("layer:N", sort=layers, title="layer" if is_first else None, axis=alt.Axis() if is_first else None),
    )
    ticks = [0.1, 0.3, 1, 3, 10] if scale.type == "log" else alt.Undefined
    legend = alt.Legend(title=None, values=ticks, format=NUMBER, gradientLength=max(80, CELL_HEIGHT * len(layers)))
    shown = alt.datum.text != ""
    return (
        alt.layer(
            base.mark_rect(color=IDLE),
            base.transform_filter(shown).mark_rect().encode(color=alt.Color("value:Q", scale=scale, legend=legend)),
            base.mark_text().encode(
                text="text:N", color=alt.condition(alt.datum.is_dark, alt.value("white"), alt.value("black"))
            ),
        )
        .resolve_scale(color="independent")
        .properties(
            width=max(MAP_WIDTH, CELL_WIDTH * heads), height=CELL_HEIGHT * len(layers), title=panel_title(title)
        )
    )
