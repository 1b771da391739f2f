"""Parts of every section: the table of variants, their accuracies, and learning curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from favorit.reports.collect import StudyRuns, Variant
from favorit.reports.contents import Column, Table
from favorit.reports.definitions import FigureDefinition, Parts, Styles, TableDefinition
from favorit.reports.encodings import color_of_variant, dash_of_variant, label_expression, shape_of_variant
from favorit.study.statistics import aggregate

if TYPE_CHECKING:
    import altair
    import pandas


def accuracy_by_variant(runs: StudyRuns) -> pandas.DataFrame:
    """variant, accuracy (mean over runs), low and high (95 % interval; empty for one run), runs, number of runs."""
    import pandas

    rows = []
    for variant in runs.complete:
        found = aggregate([run.accuracy for run in variant.complete])
        rows.append(
            {
                "variant": variant.name,
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
    """A point and its interval for each variant, the most accurate first."""
    import altair as alt

    order = list(data.sort_values("accuracy", ascending=False)["variant"])
    base = alt.Chart(data).encode(
        y=alt.Y("variant:N", sort=order, title=None, axis=alt.Axis(labelExpr=label_expression(styles))),
        color=color_of_variant(order, styles, legend=None),
        tooltip=["variant", alt.Tooltip("accuracy", format=".2%"), "n", "runs", "command"],
    )
    x = alt.X("accuracy:Q", title="test accuracy", axis=alt.Axis(format=".0%"), scale=alt.Scale(zero=False))
    return base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q") + base.mark_point().encode(
        x=x, shape=shape_of_variant(order, styles, legend=None)
    )


def learning_curves(runs: StudyRuns) -> pandas.DataFrame:
    """variant, epoch, curve (test or validation), mean accuracy over runs, low and high (smallest and largest run)."""
    import pandas

    epochs = runs.epochs
    parts = []
    for curve in ("validation", "test"):
        column = f"{curve}_accuracy"
        if column in epochs and epochs[column].notna().any():
            found = epochs.dropna(subset=[column]).groupby(["variant", "epoch"], sort=False)[column]
            parts.append(found.agg(accuracy="mean", low="min", high="max").reset_index().assign(curve=curve))
    return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()


def draw_curves(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
    """One line for each variant with a band from the lowest to the highest run."""
    import altair as alt

    names = list(dict.fromkeys(data["variant"]))
    color = color_of_variant(names, styles)
    base = alt.Chart(data).encode(x=alt.X("epoch:Q", title="epoch"), color=color)
    y = alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format=".0%"), scale=alt.Scale(zero=False))
    layers = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q"), y2="high:Q") + base.mark_line().encode(
        strokeDash=dash_of_variant(names, styles),
        y=y,
        tooltip=["variant", "epoch", alt.Tooltip("accuracy", format=".2%")],
    )
    return layers.facet(column=alt.Column("curve:N", title=None))


COLUMNS = (
    Column("variant", "variant"),
    Column("runs", "runs", is_number=True),
    Column("accuracy", "test accuracy", "{:.2%}".format, is_number=True, higher=True),
    Column("interval", "95 % interval", explain="of the mean over seeds; needs two runs"),
    Column("published", "published"),
    Column("difference", "ours - published", is_number=True, explain="in percentage points"),
    Column("parameters", "parameters", "{:,}".format, is_number=True),
    Column("flags", "flags"),
)


def variants_table(runs: StudyRuns) -> Table | None:
    """The table of variants with complete runs."""
    if not runs.complete:
        return None
    references = runs.study.group_references(runs.options) if runs.study is not None else {}
    rows = [_row(variant, references.get(variant.name, ())) for variant in runs.complete]
    return Table(
        "variants", "Variants", COLUMNS, rows, runs=[[run.id for run in variant.complete] for variant in runs.complete]
    )


def _row(variant: Variant, references: Any) -> dict[str, Any]:
    found = aggregate([run.accuracy for run in variant.complete])
    headline = [each for each in references if each.quantity.is_headline]
    interval = None if found.low is None or found.high is None else f"{found.low:.2%} to {found.high:.2%}"
    return {
        "variant": variant.name,
        "runs": found.n,
        "accuracy": found.mean,
        "interval": interval,
        "published": ", ".join(f"{each.text} %" for each in headline) or None,
        "difference": ", ".join(f"{each.difference(100 * found.mean):+.2f}" for each in headline) or None,
        "parameters": variant.complete[0].result.get("parameters"),
        "flags": " ".join(dict.fromkeys(flag for run in variant.complete for flag in run.result.get("flags") or ())),
    }


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
