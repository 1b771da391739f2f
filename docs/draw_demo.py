"""The picture of the README, from the runs of `make demo`: `python docs/draw_demo.py runs/demo` writes results/demo.csv
and docs/demo.png.

Data first, then drawing: without an argument the picture is drawn again from the CSV alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas
from matplotlib.figure import Figure

import favorit

ROOT = Path(__file__).parent.parent
CSV, PNG = ROOT / "results" / "demo.csv", ROOT / "docs" / "demo.png"
COLORS = {"softmax": "#30343f", "favor(m=64)": "#e07a2f", "relu(m=64)": "#2a9d8f", "uniform": "#9aa0a6"}
IMAGES = 360


def collect(folder: str) -> pandas.DataFrame:
    """One row for each epoch of each finished run."""
    found = favorit.runs(folder)
    rows = [
        {
            "mixer": run["layers"],
            "run": run["id"],
            "epoch": record["epoch"] + 1,
            "train_accuracy": record["train_accuracy"],
            "validation_accuracy": record["validation_accuracy"],
            "test_accuracy": run["test.accuracy"],
            "parameters": run["parameters"],
        }
        for run in found[found.status == "complete"].to_dict("records")
        for record in favorit.Run(Path(folder) / run["id"]).epochs
    ]
    return pandas.DataFrame(rows)


def interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` images."""
    z = 1.96
    center, spread = share + z**2 / (2 * count), z * (share * (1 - share) / count + z**2 / (4 * count**2)) ** 0.5
    return (center - spread) / (1 + z**2 / count), (center + spread) / (1 + z**2 / count)


def draw(data: pandas.DataFrame) -> Figure:
    """Validation accuracy by epoch, and test accuracy with its interval."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    curves, bars = figure.subplots(1, 2, width_ratios=(1.3, 1))
    names = [name for name in COLORS if name in set(data.mixer)]
    for name in names:
        part = data[data.mixer == name]
        curves.plot(part.epoch, 100 * part.validation_accuracy, color=COLORS[name], label=name, linewidth=2)
    curves.set(
        xlabel="epoch", ylabel="validation accuracy, %", title="one ViT, four mixers: digits pixel by pixel, one seed"
    )
    curves.legend(frameon=False, loc="lower right")
    for place, name in enumerate(names):
        share = data[data.mixer == name].test_accuracy.iloc[0]
        low, high = interval(share, IMAGES)
        bars.barh(place, 100 * share, color=COLORS[name], height=0.6)
        bars.errorbar(
            100 * share,
            place,
            xerr=[[100 * (share - low)], [100 * (high - share)]],
            color="black",
            capsize=4,
            linewidth=1,
        )
        bars.text(2, place, f"{100 * share:.1f} %", va="center", color="white", fontweight="bold")
    bars.set(
        yticks=range(len(names)),
        yticklabels=names,
        xlim=(0, 100),
        xlabel=f"test accuracy, %, 95 % interval ({IMAGES} images)",
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
