"""Parts of every section: the table of variants, and figures of their accuracies and learning curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from favorit.reports.definitions import FigureDefinition, Parts, Styles, TableDefinition
from favorit.reports.encodings import (
    color_of_variant,
    dash_of_variant,
    label_expression,
    line_legend,
    percent,
    shape_of_variant,
)
from favorit.reports.parts.variants import variants_table
from favorit.reports.runs import StudyRuns
from favorit.study.statistics import aggregate

if TYPE_CHECKING:
    import altair
    import pandas


def accuracy_by_variant(runs: StudyRuns) -> pandas.DataFrame:
    """variant, data, accuracy (mean over runs), low and high (95 % interval; empty for one run), n (number of runs),
    runs, command.
    """
    import pandas

    rows = []
    for variant in runs.complete:
        found = aggregate([run.accuracy for run in variant.complete])
        rows.append(
            {
                "variant": variant.name,
                "data": variant.config.data.name,
                "accuracy": found.mean,
                "low": found.low,
                "high": found.high,
                "n": found.n,
                "runs": ", ".join(run.id for run in variant.complete),
                "command": runs.command(variant.name),
            }
        )
    return pandas.DataFrame(rows)


def draw_accuracy(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
    """A point and its interval for each variant, the most accurate first; a panel for each data set."""
    import altair as alt

    panels = []
    for name, own in data.groupby("data", sort=False):
        order = list(own.sort_values("accuracy", ascending=False)["variant"])
        base = alt.Chart(own).encode(
            y=alt.Y("variant:N", sort=order, title=None, axis=alt.Axis(labelExpr=label_expression(styles))),
            color=color_of_variant(order, styles, legend=None),
            tooltip=["variant", alt.Tooltip("accuracy", format=".2%"), "n", "runs", "command"],
        )
        points = base.mark_point().encode(
            x=percent(alt.X, "accuracy", "test accuracy"), shape=shape_of_variant(order, styles, legend=None)
        )
        rules = alt.Chart(own.dropna(subset=["low"])).mark_rule(strokeWidth=2)
        intervals = rules.encode(
            x="low:Q",
            x2="high:Q",
            y=alt.Y("variant:N", sort=order),
            color=color_of_variant(order, styles, legend=None),
        )
        layers = [points, *([intervals] if own["low"].notna().any() else [])]
        panels.append(alt.layer(*layers).properties(title=f"{name}"))
    return alt.vconcat(*panels)


def learning_curves(runs: StudyRuns) -> pandas.DataFrame:
    """variant, data, epoch, curve (test or validation), accuracy (mean over runs), low and high (smallest and largest
    run).
    """
    import pandas

    epochs = runs.epochs
    data = {variant.name: variant.config.data.name for variant in runs.complete}
    parts = []
    for curve in ("validation", "test"):
        column = f"{curve}_accuracy"
        if column in epochs and epochs[column].notna().any():
            found = epochs.dropna(subset=[column]).groupby(["variant", "epoch"], sort=False)[column]
            parts.append(found.agg(accuracy="mean", low="min", high="max").reset_index().assign(curve=curve))
    if not parts:
        return pandas.DataFrame()
    curves = pandas.concat(parts, ignore_index=True)
    return curves.assign(data=curves["variant"].map(data))


def draw_curves(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
    """One line for each variant with a band from the lowest to the highest run; a panel for each data set and curve."""
    import altair as alt

    names = list(dict.fromkeys(data["variant"]))
    legend = line_legend(styles)
    base = alt.Chart().encode(
        x=alt.X("epoch:Q", title="epoch", axis=alt.Axis(format="d", tickMinStep=1)),
        color=color_of_variant(names, styles, legend=legend),
    )
    band = base.mark_area(opacity=0.15).encode(y=percent(alt.Y, "low", "accuracy"), y2="high:Q")
    line = base.mark_line(point=alt.OverlayMarkDef(size=12) if data["epoch"].nunique() < 3 else False).encode(
        strokeDash=dash_of_variant(names, styles, legend=legend),
        y=percent(alt.Y, "accuracy", "accuracy"),
        tooltip=["variant", "epoch", alt.Tooltip("accuracy", format=".2%")],
    )
    panels = [
        (band + line).properties(data=own, title=f"{name}, {curve} images")
        for (name, curve), own in data.groupby(["data", "curve"], sort=False)
    ]
    return alt.concat(*panels, columns=2)


PARTS = Parts(
    figures=(
        FigureDefinition(
            "accuracy",
            "Test accuracy of each variant",
            "Mean over seeds with its 95 % interval; a variant with one run has no interval.",
            accuracy_by_variant,
            draw_accuracy,
            needs="no complete run",
        ),
        FigureDefinition(
            "curves",
            "Accuracy by epoch",
            "Mean over seeds; the band covers all seeds.",
            learning_curves,
            draw_curves,
            needs="no complete run with accuracies by epoch",
        ),
    ),
    tables=(TableDefinition("variants", "Variants", variants_table, needs="no complete run"),),
)
