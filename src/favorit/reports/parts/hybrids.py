"""Figures 1 to 7 of Bennouna, Yang, Shao, Souaid (hybrids): our runs beside the published numbers.

Each data function returns rows with `source` (ours or published), so that both stand in one chart with equal axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from favorit import published
from favorit.reports.definitions import FigureDefinition, Parts
from favorit.reports.parts.hybrids_charts import (
    draw_best,
    draw_curves,
    draw_features,
    draw_kernels,
    draw_range,
    draw_time,
)
from favorit.reports.runs import StudyRuns
from favorit.spec import parse
from favorit.studies.hybrids import published_point

if TYPE_CHECKING:
    import pandas

OURS, PUBLISHED = "ours", "published"
# Columns of the published table -> columns of a row here. Published accuracies are in %, times in s and ms.
SCALES = {"final_test_acc": 0.01, "final_train_acc": 0.01, "train_s_per_epoch": 1.0, "infer_ms_per_batch": 1.0}
MEASURES = {
    "accuracy": "final_test_acc",
    "train_accuracy": "final_train_acc",
    "epoch_seconds": "train_s_per_epoch",
    "batch_milliseconds": "infer_ms_per_batch",
}


def results(runs: StudyRuns) -> pandas.DataFrame:
    """One row for each run of ours and each published row: source, data, layout, kernel, m, and the measures.

    Published rows are those of the data sets that we have runs of. Controls have no published row.
    """
    import pandas

    frame = runs.frame
    if frame.empty:
        return frame
    ours = pandas.DataFrame(
        {
            "source": OURS,
            "data": frame["data.name"],
            "layout": frame["model.layout"],
            "performer": frame["model.performer"],
            "run": frame["run"],
            "seed": frame["seed"],
            "accuracy": frame["accuracy"],
            "train_accuracy": frame["train_accuracy"],
            "epoch_seconds": frame["seconds_per_epoch"],
            "batch_milliseconds": 1e3 * frame["batch_seconds"].astype(float),
        }
    )
    found = pandas.concat([ours, _published(set(ours["data"]))], ignore_index=True)
    specs = [parse(text) if isinstance(text, str) else None for text in found["performer"]]
    found["kernel"] = [None if spec is None else spec.name for spec in specs]
    found["m"] = [None if spec is None else spec.kwargs.get("m") for spec in specs]
    return found


def _published(data: set[str]) -> pandas.DataFrame:
    import pandas

    rows = []
    for row in published.read("hybrids").rows:
        if row["dataset"] in data:
            point = published_point(row)
            values = {name: SCALES[column] * float(str(row[column])) for name, column in MEASURES.items()}
            fields = {"layout": point["model.layout"], "performer": point["model.performer"]}
            rows.append({"source": PUBLISHED, "data": row["dataset"], **fields, **values})
    return pandas.DataFrame(rows)


def performers(runs: StudyRuns) -> pandas.DataFrame:
    """`results` of points with Performers."""
    found = results(runs)
    return found if found.empty else found[found["kernel"].notna()]


def accuracy_range(runs: StudyRuns) -> pandas.DataFrame:
    """source, data, layout; worst, mean and best test accuracy over kernels, m and seeds; configurations and runs."""
    found = results(runs)
    if found.empty or performers(runs)[lambda rows: rows["source"] == OURS].empty:
        return found.iloc[:0]
    groups = found.groupby(["source", "data", "layout"], sort=False)
    table = groups["accuracy"].agg(worst="min", mean="mean", best="max", rows="size").reset_index()
    table["configurations"] = groups["performer"].nunique(dropna=False).to_list()
    return table


def baseline_accuracy(runs: StudyRuns) -> pandas.DataFrame:
    """source, data, baseline: the accuracy of all_standard, mean over seeds."""
    found = results(runs)
    alone = found[found["layout"] == "all_standard"]
    return alone.groupby(["source", "data"], sort=False)["accuracy"].mean().rename("baseline").reset_index()


def best_by_layout(runs: StudyRuns) -> pandas.DataFrame:
    """source, data, layout, best: the best configuration's accuracy (mean over its seeds), which one, and baseline."""
    found = performers(runs)
    if found.empty or found[found["source"] == OURS].empty:
        return found.iloc[:0]
    means = found.groupby(["source", "data", "layout", "performer"], sort=False)["accuracy"].mean().reset_index()
    best = means.loc[means.groupby(["source", "data", "layout"], sort=False)["accuracy"].idxmax()]
    return best.merge(baseline_accuracy(runs), how="left")


def by_features(runs: StudyRuns) -> pandas.DataFrame:
    """source, data, layout, kernel, m and the mean of each measure over seeds; only measures that were recorded."""
    found = performers(runs)
    if found.empty or found[found["source"] == OURS].empty:
        return found.iloc[:0]
    groups = found.groupby(["source", "data", "layout", "kernel", "m"], sort=False)
    return groups[list(MEASURES)].mean().reset_index().merge(baseline_accuracy(runs), how="left")


def timed_by_features(measure: str) -> Any:
    """The data function of a time against m: like `by_features`, if runs of ours have comparable times."""

    def timed(runs: StudyRuns) -> pandas.DataFrame:
        found = by_features(runs)
        if found.empty or found.loc[found["source"] == OURS, measure].isna().all():
            return found.iloc[:0]
        return found.dropna(subset=[measure])

    return timed


def curves_at_128(runs: StudyRuns) -> pandas.DataFrame:
    """variant, data, part (test or train), epoch, accuracy: mean over seeds of favor(m=128) and of all_standard."""
    import pandas

    kept = [
        variant.name
        for variant in runs.complete
        if variant.changes.get("model.performer") == "favor(m=128)" or variant.changes["model.layout"] == "all_standard"
    ]
    layouts = {variant.name: variant.changes["model.layout"] for variant in runs.complete}
    data = {variant.name: variant.changes["data.name"] for variant in runs.complete}
    epochs = runs.epochs
    if epochs.empty or len({layouts[name] for name in kept} - {"all_standard"}) == 0:
        return pandas.DataFrame()
    epochs = epochs[epochs["variant"].isin(kept)]
    parts = []
    for part in ("test", "train"):
        column = f"{part}_accuracy"
        if column in epochs and epochs[column].notna().any():
            means = epochs.groupby(["variant", "epoch"], sort=False)[column].mean().rename("accuracy").reset_index()
            parts.append(means.assign(part=part))
    if not parts:
        return pandas.DataFrame()
    found = pandas.concat(parts, ignore_index=True).dropna(subset=["accuracy"])
    return found.assign(layout=found["variant"].map(layouts), data=found["variant"].map(data))


PERFORMERS = "no complete run with Performers"
TIMES = "no run with comparable times: train with one worker on a quiet machine at normal priority, in a new folder"
ALONE = "--workers 1 --out runs-timed"

PARTS = Parts(
    figures=(
        FigureDefinition(
            "accuracy-range",
            "Figure 1: worst, mean and best test accuracy of each layout",
            "Over all kernels, m and seeds. The axes of ours and published differ; neither starts at zero.",
            accuracy_range,
            draw_range,
            needs=PERFORMERS,
        ),
        FigureDefinition(
            "best-by-layout",
            "Figure 2: the best configuration of each layout",
            "The dashed line is all_standard. The best of many configurations is optimistic: it is selected on the "
            "test images.",
            best_by_layout,
            draw_best,
            needs=PERFORMERS,
        ),
        FigureDefinition(
            "kernels",
            "Figure 3: relu against the softmax kernel (favor), by layout and m",
            "Mean over seeds. Axes do not start at zero.",
            by_features,
            draw_kernels,
            needs=PERFORMERS,
        ),
        FigureDefinition(
            "features",
            "Figure 4: accuracy against the number of features m",
            "Test and training accuracy, mean over seeds; the dashed line is all_standard. Axes do not start at zero.",
            by_features,
            draw_features,
            needs=PERFORMERS,
        ),
        FigureDefinition(
            "curves-128",
            "Figure 5: learning curves at m = 128 with the softmax kernel (favor)",
            "Mean over seeds. Axes do not start at zero.",
            curves_at_128,
            draw_curves,
            needs="no complete run of favor(m=128)",
        ),
        FigureDefinition(
            "training-time",
            "Figure 6: training time of an epoch against m",
            "Runs that had the machine alone. Published: Apple M3 (MPS), naive softmax.",
            timed_by_features("epoch_seconds"),
            draw_time("epoch_seconds", "seconds"),
            needs=TIMES,
            options=ALONE,
        ),
        FigureDefinition(
            "inference-time",
            "Figure 7: inference time of a batch of 128 against m",
            "Runs that had the machine alone. Published: Apple M3 (MPS), naive softmax.",
            timed_by_features("batch_milliseconds"),
            draw_time("batch_milliseconds", "milliseconds"),
            needs=TIMES,
            options=ALONE,
        ),
    ),
)
