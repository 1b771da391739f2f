"""Summary of the epoch records of a run: best epochs, total times, and when it first reached an accuracy.

Epochs are counted from 0, as in epochs.jsonl. All functions take the records of epochs.jsonl and need no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

# A result records the first epoch at each of these accuracies.
MILESTONES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)
# Curves that show when an accuracy was reached; the first one available is used.
CURVES = ("test", "validation", "train")


def outcome(epochs: Sequence[Record]) -> dict[str, Any]:
    """The fields of a result that are computed from its epoch records, as JSON data.

    `total_seconds` includes training, validation and the test of each epoch if the run is watched.
    """
    last = epochs[-1]
    train_seconds = sum(record["train_seconds"] for record in epochs)
    evaluated = sum(record["validation_seconds"] + (record.get("test_seconds") or 0.0) for record in epochs)
    return {
        "epochs": len(epochs),
        "train_loss": last["train_loss"],
        "train_accuracy": last["train_accuracy"],
        "best_validation_loss": _best_validation_loss(epochs),
        "best_test": _best_test(epochs),
        "train_seconds": train_seconds,
        "train_seconds_per_epoch": train_seconds / len(epochs),
        "total_seconds": train_seconds + evaluated,
        "reached": reached(epochs),
    }


def _best_validation_loss(epochs: Sequence[Record]) -> dict[str, Any] | None:
    known = [record for record in epochs if record.get("validation_loss") is not None]
    if not known:
        return None
    best = min(known, key=lambda record: record["validation_loss"])
    return {"value": best["validation_loss"], "epoch": best["epoch"]}


def _best_test(epochs: Sequence[Record]) -> dict[str, Any] | None:
    """The epoch with the best test accuracy. It is selected on the test set, so it is never the result of a run."""
    known = [record for record in epochs if record.get("test_accuracy") is not None]
    if not known:
        return None
    best = max(known, key=lambda record: record["test_accuracy"])
    return {"accuracy": best["test_accuracy"], "loss": best["test_loss"], "epoch": best["epoch"]}


def reached(epochs: Sequence[Record], accuracies: Sequence[float] = MILESTONES) -> dict[str, Any]:
    """{curve, accuracies: {accuracy: {epoch, seconds}}}: the first epoch at or above each accuracy, and the training
    time up to the end of that epoch.

    The curve is `test` if the run is watched, else `validation`, else `train`. Accuracies never reached are left out.
    """
    curve = next(name for name in CURVES if all(record.get(f"{name}_accuracy") is not None for record in epochs))
    found: dict[str, dict[str, float]] = {}
    seconds = 0.0
    for record in epochs:
        seconds += record["train_seconds"]
        for accuracy in accuracies:
            if record[f"{curve}_accuracy"] >= accuracy:
                found.setdefault(f"{accuracy:g}", {"epoch": record["epoch"], "seconds": seconds})
    return {"curve": curve, "accuracies": found}
