"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from favorit.cli.console import open_table

# Columns that are left out where they say nothing of any run.
SOMETIMES = ("best test (test-selected)", "flags")
# What a narrow screen has no room for, the least needed first.
OPTIONAL = ("calibration", "top 5", "test images/s", "parameters", "loss", "s/epoch")


def result_rows(results: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Titles, and one line for each run; then their mean and standard deviation where there are several."""
    rows = [{"run": name, **_written(result)} for name, result in results.items()]
    if len(results) > 1:
        for name, numbers in summary(results).items():
            rows.append(
                {"run": name, **{part: "" if value is None else f"{value:.2%}" for part, value in numbers.items()}}
            )
    titles = [title for title in rows[0] if title not in SOMETIMES or any(row.get(title) for row in rows)]
    return titles, [[row.get(title, "") for title in titles] for row in rows]


def summary(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """The mean and the standard deviation over runs of the accuracy on validation images (None where there are none)
    and on test images.
    """
    tested = [result["test"]["accuracy"] for result in results.values()]
    held = [accuracy for result in results.values() if (accuracy := _validated(result)) is not None]
    return {
        name: {"validation": function(held) if len(held) == len(tested) else None, "test": function(tested)}
        for name, function in (("mean", mean), ("deviation", stdev))
    }


def _validated(result: dict[str, Any]) -> float | None:
    """The accuracy on validation images; None where none were set aside."""
    return (result["validation"] or {}).get("accuracy")


def _written(result: dict[str, Any]) -> dict[str, str]:
    test, held = result["test"], _validated(result)
    return {
        "validation": "" if held is None else f"{held:.2%}",
        "test": f"{test['accuracy']:.2%}",
        "top 5": f"{test['top5']:.2%}",
        "loss": f"{test['loss']:.4f}",
        "calibration": f"{test['calibration_error']:.4f}",
        "epochs": str(result["epochs"]),
        "s/epoch": f"{result['train_seconds_per_epoch']:.1f}",
        "test images/s": f"{result['images_per_second']:,.0f}",
        "parameters": f"{result['parameters']:,}",
        "best test (test-selected)": f"{best['accuracy']:.2%}" if (best := result.get("best_test")) else "",
        "flags": " ".join(result["flags"]),
    }


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
