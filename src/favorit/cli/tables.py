"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from favorit.cli.console import open_table


def result_table(results: dict[str, dict[str, Any]]) -> Table:
    """One line for each run, and their mean where there are several."""
    numbers = ("test", "top_5", "loss", "calibration", "epochs", "s/epoch", "images/s", "parameters")
    table = open_table(run="left", **dict.fromkeys(numbers, "right"))
    for name, result in results.items():
        table.add_row(name, *_numbers(result), f"{result['parameters']:,}")
    if len(results) > 1:
        scores = [result["test"]["accuracy"] for result in results.values()]
        table.add_section()
        table.add_row("mean", f"{mean(scores):.2%} +- {stdev(scores):.2%}")
    return table


def _numbers(result: dict[str, Any]) -> Sequence[str]:
    test = result["test"]
    return (
        f"{test['accuracy']:.2%}",
        f"{test['top5']:.2%}",
        f"{test['loss']:.4f}",
        f"{test['calibration_error']:.4f}",
        str(result["epochs"]),
        f"{result['train_seconds_per_epoch']:.1f}",
        f"{result['images_per_second']:,.0f}",
    )


def class_table(test: dict[str, Any], classes: Sequence[str]) -> Table:
    """Precision, recall, F1 and the most frequent confusion of each class."""
    numbers = ("images", "precision", "recall", "F1")
    table = open_table(**{"class": "left", **dict.fromkeys(numbers, "right"), "most_often_taken_for": "left"})
    for index, name in enumerate(classes):
        row = test["confusion"][index]
        wrong = [(count, other) for other, count in enumerate(row) if other != index and count]
        worst = f"{classes[max(wrong)[1]]} ({max(wrong)[0]})" if wrong else ""
        table.add_row(name, str(sum(row)), *(f"{test[key][index]:.2%}" for key in ("precision", "recall", "f1")), worst)
    return table
