"""The picture of the README, from the runs of `make demo`: `python docs/draw_demo.py runs/demo` writes results/demo.csv
and docs/demo.png.

Data first, then drawing: without an argument the picture is drawn again from the CSV alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import altair as alt
import pandas

import favorit
from favorit.charts.axes import look_of, panel_title
from favorit.charts.palette import looks
from favorit.charts.save import save_chart

ROOT = Path(__file__).parent.parent
CSV, PNG = ROOT / "results" / "demo.csv", ROOT / "docs" / "demo.png"
MIXERS = ("softmax", "favor(m=64)", "relu(m=64)", "uniform")
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


def draw(data: pandas.DataFrame) -> alt.HConcatChart:
    """Validation accuracy by epoch, and test accuracy with its interval."""
    styles = looks(name for name in MIXERS if name in set(data.mixer))
    color = look_of("mixer", styles, ["color"], symbolType="stroke", symbolStrokeWidth=2, symbolSize=400)
    percent = alt.Axis(format=".0%")
    curves = (
        alt.Chart(data)
        .mark_line()
        .encode(
            x=alt.X("epoch:Q", axis=alt.Axis(grid=False), scale=alt.Scale(nice=False)),
            y=alt.Y("validation_accuracy:Q", title="validation accuracy", axis=percent),
            **color,
        )
        .properties(width=420, height=250, title=panel_title("one ViT, four mixers: digits pixel by pixel, one seed"))
    )
    bars = alt.Chart(final_accuracies(data)).encode(y=alt.Y("mixer:N", sort=list(styles), title=None))
    x = alt.X("accuracy:Q", title=None, axis=percent, scale=alt.Scale(domain=(0, 1)))
    right = alt.layer(
        bars.mark_bar().encode(x=x, **color),
        bars.mark_rule(strokeWidth=5, color="white").encode(x="low:Q", x2="high:Q"),
        bars.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        bars.mark_text(align="left", color="white", fontWeight="bold").encode(
            x=alt.value(8), text=alt.Text("accuracy:Q", format=".1%")
        ),
    ).properties(width=320, height=250, title=panel_title(f"test accuracy with its 95 % interval ({IMAGES} images)"))
    return alt.hconcat(curves, right)


def final_accuracies(data: pandas.DataFrame) -> pandas.DataFrame:
    """mixer, accuracy on the test images, low and high (its interval)."""
    last = data.drop_duplicates("mixer")
    ends = [interval(share, IMAGES) for share in last.test_accuracy]
    return pandas.DataFrame(
        {
            "mixer": list(last.mixer),
            "accuracy": list(last.test_accuracy),
            "low": [low for low, _ in ends],
            "high": [high for _, high in ends],
        }
    )


def main() -> None:
    if len(sys.argv) > 1:
        collect(sys.argv[1]).to_csv(CSV, index=False, float_format="%.4f")
    save_chart(draw(pandas.read_csv(CSV)), PNG)


if __name__ == "__main__":
    main()
