"""The figures of the hybrids report: data with known numbers, and drawn charts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from checks_chart import drawn_texts
from favorit.reports.parts import hybrids
from favorit.reports.parts.hybrids_charts import draw_kernels
from favorit.reports.runs import StudyRuns
from make_runs import ALONE, make_study

# {point of scale small: accuracy of each seed}
ACCURACIES = {
    "layout=all_standard": [0.5, 0.6],
    "layout=uniform": [0.3],
    "layout=performer_first performer=relu(m=32)": [0.4, 0.5],
    "layout=performer_first performer=favor(m=128)": [0.7],
    "layout=all_performer performer=relu(m=128)": [0.6],
}
FIELDS = dict(
    train_accuracy=0.8, inference_seconds_per_batch=[0.25, 0.0], train_seconds_per_epoch=3.0, curve=[0.25, 0.5]
)


@pytest.fixture
def runs(tmp_path: Path) -> StudyRuns:
    return make_study(tmp_path, "hybrids", ACCURACIES, scale="small", environment=ALONE, **FIELDS)


def ours(data: pandas.DataFrame, *index: str) -> pandas.DataFrame:
    return data[data["source"] == "ours"].drop(columns="source").set_index(list(index))


def test_results_have_our_runs_and_the_published_rows_of_their_data_sets(runs: StudyRuns):
    found = hybrids.results(runs)
    assert found["source"].value_counts()["ours"] == 7
    assert set(found["data"]) == {"cifar10"}
    published = found[found["source"] == "published"].set_index(["layout", "performer"])
    row = published.loc[("performer_first", "favor(m=128)")]
    assert (row["accuracy"], row["kernel"], row["m"]) == (pytest.approx(0.7429), "favor", 128)
    assert pandas.isna(ours(found, "layout").loc["uniform", "kernel"])


def test_range_is_worst_mean_and_best_over_configurations_and_seeds(runs: StudyRuns):
    row = ours(hybrids.accuracy_range(runs), "layout").loc["performer_first"]
    assert (row["worst"], row["best"], row["rows"], row["configurations"]) == (0.4, 0.7, 3, 2)
    assert row["mean"] == pytest.approx((0.4 + 0.5 + 0.7) / 3)


def test_best_configuration_is_chosen_by_its_mean(runs: StudyRuns):
    table = ours(hybrids.best_by_layout(runs), "layout")
    assert list(table["performer"]) == ["relu(m=128)", "favor(m=128)"]
    assert list(table["accuracy"]) == pytest.approx([0.6, 0.7])
    assert list(table["baseline"]) == pytest.approx([0.55, 0.55])
    assert "uniform" not in table.index, "controls have no configurations"


def test_measures_against_m_are_means_over_seeds(runs: StudyRuns):
    row = ours(hybrids.by_features(runs), "layout", "kernel", "m").loc[("performer_first", "relu", 32)]
    measured = ["accuracy", "train_accuracy", "epoch_seconds", "batch_milliseconds", "baseline"]
    assert list(row[measured]) == pytest.approx([0.45, 0.8, 3.0, 250.0, 0.55])


@pytest.mark.parametrize("measure", ["epoch_seconds", "batch_milliseconds"])
def test_times_of_runs_that_shared_the_machine_are_not_shown(measure: str, runs: StudyRuns, tmp_path: Path):
    assert len(hybrids.timed_by_features(measure)(runs)) > 3
    shared = make_study(tmp_path / "shared", "hybrids", ACCURACIES, scale="small", **FIELDS)
    assert hybrids.timed_by_features(measure)(shared).empty
    (figure,) = [each for each in hybrids.PARTS.figures if each.data is not None and "Figure 6" in each.title]
    gap = figure.build(shared)
    assert gap.command == "favorit study run hybrids --scale small --workers 1 --out runs-timed"


def test_learning_curves_are_those_of_128_favor_features_and_the_baseline(runs: StudyRuns):
    data = hybrids.curves_at_128(runs)
    assert set(data["layout"]) == {"all_standard", "performer_first"}
    test = data[(data["part"] == "test") & (data["layout"] == "performer_first")]
    assert test[["epoch", "accuracy"]].to_numpy().tolist() == [[1, 0.25], [2, 0.5]]


@pytest.mark.parametrize("figure", hybrids.PARTS.figures, ids=lambda figure: figure.name)
def test_figure_is_drawn_with_its_axis_of_features(figure, runs: StudyRuns):
    texts = drawn_texts(figure.draw(figure.data(runs), runs.styles))
    assert any(text.startswith("performer_first") for text in texts)
    if "features m (logarithmic)" in texts:
        panel = [text for text in texts if text.isdecimal()]
        assert {"8", "16", "32", "64", "128", "256", "512"} <= set(panel)


def test_axis_of_features_has_all_labels_for_a_single_m(tmp_path: Path):
    runs = make_study(tmp_path, "hybrids", {"layout=all_performer performer=relu(m=128)": [0.5]}, scale="small")
    texts = drawn_texts(draw_kernels(hybrids.by_features(runs), runs.styles))
    assert texts.count("8") == texts.count("512") > 1


@pytest.mark.parametrize(
    "data", [each.data for each in hybrids.PARTS.figures], ids=[each.name for each in hybrids.PARTS.figures]
)
def test_figure_without_performers_is_a_gap(data: Callable[[StudyRuns], pandas.DataFrame], tmp_path: Path):
    runs = make_study(tmp_path, "hybrids", {"layout=all_standard": [0.5]}, scale="small", **FIELDS)
    assert data(runs).empty
