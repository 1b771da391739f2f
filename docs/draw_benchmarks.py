"""The pictures of two benchmarks, from their stored tables: `python docs/draw_benchmarks.py` writes docs/crossover.png
and docs/approximation.png.

results/README.md has the commands, machines and dates of the tables. That of crossover is from a version that stored
medians only, so the picture has no intervals.
"""

from __future__ import annotations

from pathlib import Path

import pandas

from favorit.bench import approximation, approximation_figure, crossover, crossover_figure
from favorit.charts.save import save_chart

ROOT = Path(__file__).parent.parent
CROSSOVER_TITLE = "Tokens from which a mixer beats SDPA\nbatch 64, 4 heads of 32, 2 threads, AMD EPYC (Zen 4)"
APPROXIMATION_TITLE = "Error of kernels relative to softmax attention\nhead width 64, 128 tokens"


def crossover_points() -> list[crossover.Point]:
    """The points of results/crossover_b64.csv. Each has one round, its median."""
    table = pandas.read_csv(ROOT / "results" / "crossover_b64.csv")
    return [crossover.Point(**row, rounds=(row["median"],)) for row in table.to_dict("records")]


def approximation_points() -> list[approximation.Point]:
    """The points of results/approximation.csv. An empty m means a kernel without m."""
    table = pandas.read_csv(ROOT / "results" / "approximation.csv").astype({"m": object})
    return [
        approximation.Point(**{**row, "m": None if pandas.isna(row["m"]) else int(row["m"])})
        for row in table.to_dict("records")
    ]


def main() -> None:
    save_chart(
        crossover_figure.draw(crossover_figure.panels(crossover_points()), CROSSOVER_TITLE),
        ROOT / "docs" / "crossover.png",
    )
    save_chart(
        approximation_figure.draw(approximation_figure.panels(approximation_points()), APPROXIMATION_TITLE),
        ROOT / "docs" / "approximation.png",
    )


if __name__ == "__main__":
    main()
