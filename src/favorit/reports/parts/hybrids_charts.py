"""The charts of the hybrids report, drawn from the tables of `hybrids`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from favorit.reports.definitions import Styles
from favorit.reports.encodings import LAYOUT_ORDER, fixed_color, percent

if TYPE_CHECKING:
    import altair
    import pandas

FEATURES = [8, 16, 32, 64, 128, 256, 512]  # the labels of an axis of m


def draw_range(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
    """A rule from the worst to the best configuration of each layout, with the mean as a point."""
    import altair as alt

    title = "test accuracy: worst, mean and best"
    x = percent(alt.X, "worst", title)
    shares = [alt.Tooltip(name, format=".2%") for name in ("worst", "mean", "best")]
    base = alt.Chart().encode(
        y=_layouts(), color=fixed_color("layout", data, legend=None), tooltip=["layout", *shares, "rows"]
    )
    rule = base.mark_rule(strokeWidth=5, opacity=0.45).encode(x=x, x2="best:Q")
    return _by_source(rule + base.mark_point(size=80).encode(x="mean:Q"), data)


def draw_best(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
    """The best configuration of each layout as a point; the dashed line is the baseline."""
    import altair as alt

    title = "test accuracy of the best configuration"
    x = percent(alt.X, "accuracy", title)
    shares = [alt.Tooltip(name, format=".2%") for name in ("accuracy", "baseline")]
    base = alt.Chart().encode(y=_layouts())
    color = fixed_color("layout", data, legend=None)
    point = base.mark_point(size=90).encode(x=x, color=color, tooltip=["layout", "performer", *shares])
    text = base.mark_text(align="left", dx=8, fontSize=10).encode(x="accuracy:Q", text="performer:N")
    line = alt.Chart().mark_rule(strokeDash=[4, 3], color="#777777").encode(x="mean(baseline):Q")
    return _by_source(line + point + text, data)


def draw_kernels(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
    """relu against favor: accuracy over m, one panel for each layout."""
    import altair as alt

    y = percent(alt.Y, "accuracy", "test accuracy")
    tips: list[Any] = ["layout", "kernel", "m", alt.Tooltip("accuracy", format=".2%")]
    base = alt.Chart().encode(x=_features_axis(), y=y, color=fixed_color("kernel", data), tooltip=tips)
    return _by_layout(base.mark_line() + base.mark_point(), data)


def draw_features(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
    """Test and training accuracy over m (logarithmic), one panel for each kernel; the dashed line is the baseline."""
    import altair as alt

    names = {"accuracy": "test accuracy", "train_accuracy": "training accuracy"}
    kept = [name for name in data if name not in names]
    long = data.melt(kept, list(names), "part", "share").dropna(subset=["share"])
    long["part"] = long["part"].map(names)
    long["baseline"] = long["baseline"].where(long["part"] == "test accuracy")
    y = percent(alt.Y, "share", "accuracy")
    tips: list[Any] = ["layout", "kernel", "m", "part", alt.Tooltip("share", format=".2%")]
    base = alt.Chart().encode(x=_features_axis(), y=y, color=fixed_color("layout", data), tooltip=tips)
    line = alt.Chart().mark_rule(strokeDash=[4, 3], color="#777777").encode(y="mean(baseline):Q")
    panels = (line + base.mark_line() + base.mark_point()).properties(width=210, height=170)
    return _concatenated(
        [
            panels.facet(
                data=long[(long["source"] == source) & (long["data"] == name)],
                column=alt.Column("kernel:N", title=f"{source}, {name}"),
                row=alt.Row("part:N", title=None),
            ).resolve_scale(y="independent")
            for source, name in _sources(data)
        ]
    )


def draw_curves(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
    """Accuracy by epoch, one panel for test and one for training images."""
    import altair as alt

    y = percent(alt.Y, "accuracy", "accuracy")
    tips: list[Any] = ["layout", "epoch", alt.Tooltip("accuracy", format=".2%")]
    x = alt.X("epoch:Q", title="epoch")
    line = alt.Chart(data).mark_line().encode(x=x, y=y, color=fixed_color("layout", data), tooltip=tips)
    panels = line.properties(width=330, height=230)
    return panels.facet(column=alt.Column("part:N", title=None), row=alt.Row("data:N", title=None))


def draw_time(measure: str, title: str) -> Any:
    """The draw function of a time against m: one panel for each layout, colors for kernels."""

    def draw(data: pandas.DataFrame, styles: Styles) -> altair.TopLevelMixin:
        import altair as alt

        y = alt.Y(f"{measure}:Q", title=title, scale=alt.Scale(zero=True))
        tips: list[Any] = ["layout", "kernel", "m", alt.Tooltip(measure, format=".3g")]
        base = alt.Chart().encode(x=_features_axis(), y=y, color=fixed_color("kernel", data), tooltip=tips)
        return _by_layout(base.mark_line() + base.mark_point(), data)

    return draw


def _features_axis() -> altair.X:
    import altair as alt

    # A fixed range: with a single m, the range of the data would have no width.
    scale = alt.Scale(type="log", base=2, domain=[FEATURES[0], FEATURES[-1]], nice=False)
    ticks = alt.Axis(values=FEATURES, format="d", labelOverlap=False, labelFlush=False)
    return alt.X("m:Q", title="features m (logarithmic)", scale=scale, axis=ticks)


def _layouts() -> altair.Y:
    import altair as alt

    return alt.Y("layout:N", sort=list(LAYOUT_ORDER), title=None)


def _sources(data: pandas.DataFrame) -> list[tuple[str, str]]:
    """(source, data set) of the panels. Each has its own axis, because scale and hardware differ."""
    return list(data[["source", "data"]].drop_duplicates().itertuples(index=False, name=None))


def _by_source(chart: altair.LayerChart, data: pandas.DataFrame) -> altair.TopLevelMixin:
    """One panel for each source and data set, side by side."""
    return _concatenated(
        [
            chart.properties(
                data=data[(data["source"] == source) & (data["data"] == name)],
                title=f"{source}, {name}",
                width=300,
            )
            for source, name in _sources(data)
        ],
        columns=2,
    )


def _by_layout(chart: altair.LayerChart, data: pandas.DataFrame) -> altair.TopLevelMixin:
    """For each source and data set a row of panels, one for each layout, with one axis."""
    import altair as alt

    column = alt.Column("layout:N", title=None, sort=list(LAYOUT_ORDER))
    return _concatenated(
        [
            chart.properties(width=170, height=150).facet(
                data=data[(data["source"] == source) & (data["data"] == name)], column=column, title=f"{source}, {name}"
            )
            for source, name in _sources(data)
        ]
    )


def _concatenated(charts: list[Any], columns: int = 1) -> altair.TopLevelMixin:
    import altair as alt

    return alt.concat(*charts, columns=columns)
