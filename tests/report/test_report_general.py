"""The parts of every section: tables, marks, notes, figures and the sentence at a glance."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest

from checks_chart import drawn_texts
from favorit.reports.build import build_report, grouped
from favorit.reports.collect import collect
from favorit.reports.contents import Gap
from favorit.reports.parts.general import PARTS, accuracy_by_variant, learning_curves
from favorit.reports.parts.glance import glance
from favorit.reports.parts.variants import SHARED as SHARED_NOTE
from favorit.reports.parts.variants import comparable_times, pareto, variants_table
from favorit.reports.runs import StudyRuns
from make_runs import ALONE, make_run, make_study
from training_helpers import tiny

QUICK = {
    "layout=softmax": [0.8, 0.9],
    "layout=favor(m=64)": [0.7],
    "layout=relu(m=64)": [0.9, 0.9],
    "layout=uniform": [0.4],
}


def marks(runs: StudyRuns) -> dict[str, str]:
    table = variants_table(runs)
    assert table is not None
    return {row["variant"]: row["marks"] for row in table.rows}


def notes(runs: StudyRuns) -> str:
    table = variants_table(runs)
    assert table is not None
    return " ".join(table.notes)


# accuracies


def test_accuracy_is_the_mean_over_seeds_with_the_interval_of_student(tmp_path: Path):
    data = accuracy_by_variant(make_study(tmp_path, "quickstart", QUICK)).set_index("variant")
    assert list(data["accuracy"]) == pytest.approx([0.85, 0.7, 0.9, 0.4])
    assert list(data["n"]) == [2, 1, 2, 1]
    # t(1) = 12.706, s = 0.0707, n = 2
    assert data.loc["layout=softmax", "high"] == pytest.approx(0.85 + 12.706 * 0.1 / 2, abs=1e-3)
    assert pandas.isna(data.loc["layout=favor(m=64)", "low"])
    assert data.loc["layout=uniform", "command"] == "favorit study run quickstart --only layout=uniform"


def test_runs_without_result_do_not_count(tmp_path: Path):
    make_run(tmp_path, tiny(seed=0), 0.5, name="a seed=0", study="thesis")
    make_run(tmp_path, tiny(seed=1), name="a seed=1", study="thesis", status="failed")
    make_run(tmp_path, tiny(seed=2), name="a seed=2", study="thesis", status="training", curve=[0.9])
    (runs,) = collect(tmp_path).studies
    assert list(accuracy_by_variant(runs)["n"]) == [1]
    assert learning_curves(runs).empty


def test_learning_curve_is_the_mean_with_the_range_of_runs(tmp_path: Path):
    for seed, curve in enumerate(([0.25, 0.5], [0.75, 0.75])):
        make_run(tmp_path, tiny(seed=seed), 0.5, name=f"a seed={seed}", study="thesis", curve=curve)
    (runs,) = collect(tmp_path).studies
    rows = learning_curves(runs)[["epoch", "curve", "accuracy", "low", "high"]]
    assert rows.to_numpy().tolist() == [[1, "test", 0.5, 0.25, 0.75], [2, "test", 0.625, 0.5, 0.75]]


@pytest.mark.parametrize("seeds", [1, 2])
def test_figures_are_drawn_with_and_without_intervals(seeds: int, tmp_path: Path):
    for seed in range(seeds):
        for layout in ("softmax", "relu(m=8)"):
            for curve in ([0.5], [0.5, 0.75, 0.625]):
                config = tiny(model=dict(layout=layout), train=dict(epochs=len(curve)), seed=seed)
                make_run(
                    tmp_path, config, 0.5 + 0.1 * seed, name=f"{layout} epochs={len(curve)} seed={seed}", curve=curve
                )
    (section,) = build_report(tmp_path).sections
    assert {figure.name for figure in section.figures} == {figure.name for figure in PARTS.figures}
    for figure in section.figures:
        texts = drawn_texts(figure.chart)
        assert "softmax epochs=3" in texts
        assert any(text.endswith("%") for text in texts)


def test_data_sets_have_panels_of_their_own(tmp_path: Path):
    runs = make_study(
        tmp_path,
        "hybrids",
        {"data=mnist layout=all_standard": [0.9], "data=cifar10 layout=all_standard": [0.5]},
        curve=[0.5, 0.75],
    )
    for figure in PARTS.figures:
        texts = drawn_texts(figure.draw(figure.data(runs), runs.styles))
        assert sum(text.startswith(("mnist", "cifar10")) and "all_standard" not in text for text in texts) == 2


# table of variants


def test_pareto_front_keeps_what_nothing_beats():
    assert pareto([0.5, 0.6, 0.6, 0.4, 0.7], [10, 10, 20, 5, 30]) == {1, 3, 4}
    assert pareto([0.5, 0.5], [10, 10]) == {0, 1}, "equals do not beat each other"


def test_best_and_pareto_optimal_rows_are_marked(tmp_path: Path):
    for name, accuracy, parameters in (("large", 0.9, 300), ("small", 0.8, 100), ("worse", 0.7, 200)):
        config = tiny(model=dict(dim=8 * parameters // 100))
        make_run(tmp_path, config, accuracy, name=name, study="thesis", parameters=parameters)
    (runs,) = collect(tmp_path).studies
    assert marks(runs) == {"large": "best, parameters", "small": "parameters", "worse": ""}
    table = variants_table(runs)
    assert table is not None
    assert sorted(table.marks.values()) == [("Pareto-optimal",), ("Pareto-optimal",), ("best",)]
    assert "best, parameters" in table.render("csv")


def test_single_variant_is_not_marked_as_best(tmp_path: Path):
    assert marks(make_study(tmp_path, "quickstart", {"layout=softmax": [0.9]})) == {"layout=softmax": ""}


def test_best_is_marked_on_each_data_set(tmp_path: Path):
    runs = make_study(
        tmp_path,
        "hybrids",
        {
            f"data={data} layout={layout}": [accuracy]
            for data, offset in (("mnist", 0.4), ("cifar10", 0.0))
            for layout, accuracy in (("all_standard", 0.5 + offset), ("uniform", 0.4 + offset))
        },
    )
    assert {name for name, words in marks(runs).items() if "best" in words} == {
        "data=mnist layout=all_standard",
        "data=cifar10 layout=all_standard",
    }


def test_times_are_compared_only_for_runs_alone_on_one_machine(tmp_path: Path):
    for number, (seconds, environment) in enumerate([(1.0, ALONE), (2.0, ALONE), (9.0, {**ALONE, "workers": 2})]):
        config = tiny(train=dict(epochs=number + 1))
        make_run(
            tmp_path,
            config,
            0.5 + 0.1 * number,
            name=f"run {number}",
            environment=environment,
            train_seconds_per_epoch=seconds,
        )
    (runs,) = collect(tmp_path).studies
    times, found = comparable_times(runs.complete)
    assert [times[f"run {number}"].get("epoch_seconds") for number in range(3)] == [1.0, 2.0, None]
    assert found == [SHARED_NOTE]
    make_run(tmp_path, tiny(seed=9), 0.5, name="elsewhere", environment={**ALONE, "processor": "another"})
    (runs,) = collect(tmp_path).studies
    times, found = comparable_times(runs.complete)
    assert not any(times.values())
    assert "2 machines" in found[-1]


def test_table_shows_published_numbers_with_flags_and_why_ours_differ(tmp_path: Path):
    runs = make_study(
        tmp_path, "hybrids", {"layout=all_standard": [0.5], "layout=uniform": [0.4]}, scale="small", flags=["watched"]
    )
    table = variants_table(runs)
    assert table is not None
    row, control = table.rows
    assert (row["published"], row["difference"]) == ("72.96 %", "-22.96")
    assert row["published_flags"] == "augmented-test last-epoch text-differs"
    assert control["published"] is None
    assert "scale (small: train.epochs=10, data.subset=10000)" in notes(runs)
    assert "naive softmax" in notes(runs), "the remarks of the study"
    (section,) = build_report(tmp_path).sections
    assert section.flags["watched"] == "the test set was evaluated after each epoch, but not used for selection"
    assert set(section.flags) == {"watched", "augmented-test", "last-epoch", "text-differs"}
    assert "Bennouna" in section.source
    assert "Apple M3" in section.source


def test_protocol_is_a_reason_for_a_difference(tmp_path: Path):
    make_study(tmp_path, "hybrids", {"data=cifar10 layout=all_standard": [0.5]}, protocol="sound")
    (runs,) = collect(tmp_path).studies
    assert "in protocol (sound: data.validation=" in notes(runs)


def test_columns_without_any_value_are_left_out(tmp_path: Path):
    table = variants_table(make_study(tmp_path, "quickstart", {"layout=softmax": [0.9]}))
    assert table is not None
    assert [column.key for column in table.columns] == ["variant", "runs", "accuracy", "parameters"]


def test_table_is_written_as_csv_markdown_and_latex(tmp_path: Path):
    make_run(tmp_path, tiny(), 0.5, name="a|b_c & 50%", study="thesis", parameters=1234567)
    (section,) = build_report(tmp_path).sections
    (table,) = section.tables
    assert table.render("csv").splitlines()[1] == "a|b_c & 50%,1,50.00%,1234567"
    assert table.render("markdown").splitlines()[2] == r"| a\|b_c & 50% | 1 | 50.00% | 1,234,567 |"
    assert r"a\textbar{}b\_c \& 50\% & 1 & 50.00\% & 1,234,567 \\" in table.render("latex")


# at a glance


def test_glance_says_undecided_where_the_interval_contains_zero(tmp_path: Path):
    runs = make_study(
        tmp_path, "quickstart", {"layout=softmax": [0.8, 0.8], "layout=relu(m=64)": [0.805, 0.805]}, shift=0
    )
    assert glance(runs) == (
        "On digits, relu(m=64) is the most accurate of 2 variants: 80.5% (2 runs). Its lead over the baseline, "
        "softmax, is +0.5 points (+0.0 to +1.5): undecided, because the 95 % interval contains 0."
    )


def test_glance_is_decided_where_the_interval_excludes_zero(tmp_path: Path):
    runs = make_study(tmp_path, "quickstart", {"layout=softmax": [0.5, 0.5], "layout=relu(m=64)": [0.8, 0.8]})
    assert "is +30.0 points (" in glance(runs)
    assert glance(runs).endswith("the 95 % interval excludes 0.")


def test_glance_compares_a_leading_baseline_with_the_next(tmp_path: Path):
    text = glance(
        make_study(
            tmp_path, "quickstart", {"layout=softmax": [0.9], "layout=uniform": [0.5], "layout=relu(m=64)": [0.4]}
        )
    )
    assert text.startswith("On digits, the baseline softmax is the most accurate of 3 variants: 90.0% (1 run).")
    assert "Its lead over the next, uniform, is +40.0 points" in text
    assert text.endswith("With one run of a side, the interval does not cover other seeds.")


def test_glance_without_a_second_variant_compares_nothing(tmp_path: Path):
    text = glance(make_study(tmp_path, "quickstart", {"layout=softmax": [0.9]}))
    assert text.endswith("there is no other variant to compare it with.")


def test_glance_has_a_sentence_for_each_data_set(tmp_path: Path):
    runs = make_study(
        tmp_path, "hybrids", {"data=mnist layout=all_standard": [0.9], "data=cifar10 layout=uniform": [0.4]}
    )
    assert glance(runs).startswith("On mnist, all_standard reaches a test accuracy of 90.0% (1 run)")
    assert "On cifar10, uniform reaches a test accuracy of 40.0%" in glance(runs)


# gaps


def test_gaps_are_one_line_for_each_command_and_reason():
    gaps = [Gap("a", "no run", "x"), Gap("c", "slow", "y"), Gap("b", "no run", "x"), Gap("d", "no m", "x")]
    assert grouped(gaps) == [Gap("a; b", "no run", "x"), Gap("d", "no m", "x"), Gap("c", "slow", "y")]


def test_missing_points_of_a_study_are_one_gap(tmp_path: Path):
    make_study(tmp_path, "hybrids", {"layout=all_standard": [0.5]}, scale="small", curve=[0.5, 0.75])
    (section,) = build_report(tmp_path).sections
    (gap,) = [each for each in section.gaps if "variants" in each.what]
    assert gap.what == "29 of 30 variants"
    assert gap.why.endswith("and 26 more")
    assert gap.command == "favorit study run hybrids --scale small"
    assert len(section.gaps) < 6
