"""Tables of results: one row for each run, and one for each class."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

# Columns that are shown only if a run has a value.
IF_PRESENT = ("top 5", "best test (test-selected)", "flags")
# Columns to drop on a narrow terminal, the first one first.
OPTIONAL = ("calibration", "top 5", "test images/s", "parameters", "loss", "s/epoch")
# The numbers of a class.
CLASS_NUMBERS = ("images", "precision", "recall", "F1")


def result_rows(results: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Column titles and one row for each run. With several runs, two more rows have their mean and deviation."""
    rows = [{"run": name, **_cells(result)} for name, result in results.items()]
    if len(results) > 1:
        for name, parts in summary(results).items():
            rows.append(
                {"run": name, **{part: "" if value is None else f"{value:.2%}" for part, value in parts.items()}}
            )
    titles = [title for title in rows[0] if title not in IF_PRESENT or any(row.get(title) for row in rows)]
    return titles, [[row.get(title, "") for title in titles] for row in rows]


def summary(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Mean and standard deviation over runs of validation accuracy (None without validation) and test accuracy."""
    test = [result["test"]["accuracy"] for result in results.values()]
    validation = [accuracy for result in results.values() if (accuracy := _validation_accuracy(result)) is not None]
    return {
        name: {"validation": function(validation) if len(validation) == len(test) else None, "test": function(test)}
        for name, function in (("mean", mean), ("deviation", stdev))
    }


def _validation_accuracy(result: dict[str, Any]) -> float | None:
    """Validation accuracy, or None without validation images."""
    return (result["validation"] or {}).get("accuracy")


def _cells(result: dict[str, Any]) -> dict[str, str]:
    test, validation = result["test"], _validation_accuracy(result)
    return {
        "validation": "" if validation is None else f"{validation:.2%}",
        "test": f"{test['accuracy']:.2%}",
        "top 5": f"{test['top5']:.2%}" if has_top5(test) else "",
        "loss": f"{test['loss']:.4f}",
        "calibration": f"{test['calibration_error']:.4f}",
        "epochs": str(result["epochs"]),
        "s/epoch": f"{result['train_seconds_per_epoch']:.1f}",
        "test images/s": f"{result['images_per_second']:,.0f}",
        "parameters": f"{result['parameters']:,}",
        "best test (test-selected)": f"{best['accuracy']:.2%}" if (best := result.get("best_test")) else "",
        "flags": " ".join(result["flags"]),
    }


def has_top5(test: dict[str, Any]) -> bool:
    """True if the accuracy among the five most probable classes can be below 1: with more than five classes."""
    return len(test["confusion"]) > 5


def class_rows(test: dict[str, Any], classes: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Column titles and one row for each class: precision, recall, F1 and the most frequent wrong prediction."""
    rows = []
    for index, name in enumerate(classes):
        row = test["confusion"][index]
        errors = [(count, other) for other, count in enumerate(row) if other != index and count]
        worst = f"{classes[max(errors)[1]]} ({max(errors)[0]})" if errors else ""
        rates = [f"{test[key][index]:.2%}" for key in ("precision", "recall", "f1")]
        rows.append([name, str(sum(row)), *rates, worst])
    return ["class", *CLASS_NUMBERS, "most often confused with"], rows
