"""The picture of the README: `python docs/draw_mixers.py RUNS` reads finished runs, writes results/mixers_cifar10.csv and docs/mixers.png.

The runs are those of docs/train_mixers.sh. Data first, then drawing; the picture can be drawn again from the CSV alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas
from matplotlib.figure import Figure

import favorit

ROOT = Path(__file__).parent.parent
CSV, PNG = ROOT / "results" / "mixers_cifar10.csv", ROOT / "docs" / "mixers.png"
COLOURS = {"softmax": "#30343f", "relu(m=64)": "#2a9d8f", "favor(m=64)": "#e07a2f", "uniform": "#9aa0a6", "none": "#c9cdd2"}


def collect(folder: str) -> pandas.DataFrame:
    """One row for each epoch of each finished run."""
    found = favorit.runs(folder)
    rows = []
    for run in found[found.status == "complete"].to_dict("records"):
        for record in favorit.Run(Path(folder) / run["id"]).epochs:
            rows.append(
                {
                    "mixer": run["layers"],
                    "run": run["id"],
                    "epoch": record["epoch"] + 1,
                    "train_accuracy": record["train_accuracy"],
                    "validation_accuracy": record["validation_accuracy"],
                    "train_seconds": record["train_seconds"],
                    "test_accuracy": run["test.accuracy"],
                    "parameters": run["parameters"],
                }
            )
    return pandas.DataFrame(rows)


def draw(data: pandas.DataFrame) -> Figure:
    """Validation accuracy by epoch, and the median time of an epoch beside the test accuracy."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    curves, bars = figure.subplots(1, 2, width_ratios=(1.2, 1))
    names = [name for name in COLOURS if name in set(data.mixer)]
    for name in names:
        part = data[data.mixer == name]
        curves.plot(part.epoch, 100 * part.validation_accuracy, marker="o", color=COLOURS[name], label=name)
    curves.set(xlabel="epoch", ylabel="validation accuracy, %", title="CIFAR-10, 142,026 parameters, one seed")
    curves.set_xticks(sorted(data.epoch.unique()))
    curves.legend(frameon=False)
    seconds = [data[data.mixer == name].train_seconds.median() for name in names]
    tested = [100 * data[data.mixer == name].test_accuracy.iloc[0] for name in names]
    places = range(len(names))
    bars.barh(places, seconds, color=[COLOURS[name] for name in names])
    for place, value, accuracy in zip(places, seconds, tested, strict=True):
        bars.text(value, place, f"  {value:.0f} s   test {accuracy:.1f} %", va="center")
    bars.set(
        yticks=list(places), yticklabels=names, xlabel="seconds for an epoch of 45,000 images, 2 CPU threads", xlim=(0, 1.45 * max(seconds))
    )
    bars.invert_yaxis()
    for axes in (curves, bars):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    if len(sys.argv) > 1:
        collect(sys.argv[1]).to_csv(CSV, index=False, float_format="%.4f")
    draw(pandas.read_csv(CSV)).savefig(PNG, dpi=110)


if __name__ == "__main__":
    main()
