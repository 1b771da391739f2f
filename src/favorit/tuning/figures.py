"""The figure of a search: accuracy by trial, and importance of each field.

`history` and `importances` compute the data, `draw` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from favorit.charts.axes import look_of, panel_title, titled
from favorit.charts.palette import BASELINE, COLORS, DASHES, SHAPES, Look, colors
from favorit.tuning.result import TuneResult

if TYPE_CHECKING:
    import altair

LOOKS = {"complete": Look(COLORS[0], SHAPES[0], DASHES[0]), "pruned": Look(COLORS[1], SHAPES[4], DASHES[0])}
WIDTH, HEIGHT = 400, 260  # of a panel
BAR = 45  # largest height of the bars of one field
MOST_TICKS = 15


@dataclass(frozen=True)
class History:
    """(trial, accuracy) of complete and pruned trials, and the best complete accuracy up to each trial."""

    complete: list[tuple[int, float]]
    pruned: list[tuple[int, float]]
    best: list[tuple[int, float]]


def history(result: TuneResult) -> History:
    """The data of the left panel."""
    points = {
        state: [(t.number, t.values[0]) for t in result.trials if t.state == state and t.values]
        for state in ("complete", "pruned")
    }
    best: list[tuple[int, float]] = []
    for number, value in points["complete"]:
        best.append((number, max(value, best[-1][1]) if best else value))
    return History(points["complete"], points["pruned"], best)


def importances(result: TuneResult) -> list[tuple[str, list[float]]]:
    """The data of the right panel: each field with its importance for each objective.

    The field that is most important for the first objective comes first.
    """
    names = [name for name in result.objectives if name in result.importances]
    fields: Sequence[str] = list(result.importances[names[0]]) if names else []
    return [(field, [result.importances[name][field] for name in names]) for field in fields]


def draw(result: TuneResult) -> altair.TopLevelMixin:
    """The history, and beside it the importances if the search has enough trials for them."""
    import altair as alt

    shares = importances(result)
    if not shares:
        return titled(_draw_history(result), f"{result.name}\ntoo few trials for importances")
    panels = alt.hconcat(_draw_history(result), _draw_importances(result.objectives, shares))
    return titled(panels.resolve_scale(color="independent", shape="independent"), result.name)


def _draw_history(result: TuneResult) -> altair.LayerChart | altair.FacetChart:
    """A point per trial with an accuracy, and a step line of the best one so far."""
    import altair as alt

    found = history(result)
    parts = {state: points for state, points in (("complete", found.complete), ("pruned", found.pruned)) if points}
    values = [value for points in parts.values() for _, value in points] or [0.0, 1.0]
    margin = 0.05 * (max(values) - min(values)) or 0.01
    last = max((trial.number for trial in result.trials), default=0)
    x = alt.X(
        "trial:Q",
        scale=alt.Scale(domain=(-0.5, last + 0.5), nice=False),
        axis=alt.Axis(values=list(range(0, last + 1, -(-(last + 1) // MOST_TICKS))), format="d", grid=False),
    )
    y = alt.Y(
        "accuracy:Q",
        title="validation accuracy",
        scale=alt.Scale(domain=(min(values) - margin, max(values) + margin), nice=False),
        axis=alt.Axis(format=".3~p"),
    )
    # An invisible point, so that a search without accuracies has axes.
    layers = [_points([(0, values[0])]).mark_point(opacity=0).encode(x=x, y=y)]
    if found.best:
        layers += [
            _points(found.best).mark_line(interpolate="step-after", color=BASELINE).encode(x=x, y=y),
            _points(found.best[-1:]).mark_text(text="best so far", align="right", dy=-9).encode(x=x, y=y),
        ]
    look = look_of("state", {state: LOOKS[state] for state in parts}, ["color", "shape"])
    layers += [_points(points, state).mark_point(opacity=1).encode(x=x, y=y, **look) for state, points in parts.items()]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=panel_title("accuracy by trial"))


def _points(points: Sequence[tuple[int, float]], state: str = "") -> altair.Chart:
    """A chart of (trial, accuracy), without a mark."""
    import altair as alt
    import pandas

    return alt.Chart(pandas.DataFrame(points, columns=["trial", "accuracy"]).assign(state=state))


def _draw_importances(objectives: Sequence[str], shares: Sequence[tuple[str, list[float]]]) -> altair.Chart:
    """A bar for each field and objective."""
    import altair as alt
    import pandas

    rows = [
        dict(field=field, objective=objective, importance=share)
        for field, values in shares
        for objective, share in zip(objectives, values, strict=True)
    ]
    palette = colors(objectives)
    color = alt.Color(
        "objective:N",
        sort=list(objectives),
        scale=alt.Scale(domain=list(palette), range=list(palette.values())),
        legend=alt.Legend(title=None, orient="bottom") if len(objectives) > 1 else None,
    )
    return (
        alt.Chart(pandas.DataFrame(rows))
        .mark_bar()
        .encode(
            x=alt.X(
                "importance:Q",
                title="importance",
                scale=alt.Scale(domainMin=0),
                axis=alt.Axis(format=".0%", tickCount=5),
            ),
            y=alt.Y("field:N", sort=[field for field, _ in shares], title=None),
            yOffset=alt.YOffset("objective:N", sort=list(objectives)),
            color=color,
        )
        .properties(width=WIDTH, height=min(HEIGHT, BAR * len(shares)), title=panel_title("importance of the fields"))
    )
