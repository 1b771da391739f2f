"""The quantities that reports publish, each with the function that computes it from a run.

The function `ours` of a quantity receives a run's result (result.json) and its epochs (the records of epochs.jsonl). It
returns None if the run did not record the values: older results lack some keys, and only runs with train.watch=test
have a test accuracy for each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from favorit.smoothing import smooth

Result = Mapping[str, Any]
Epochs = Sequence[Mapping[str, Any]]
Ours = Callable[[Result, Epochs], float | None]

CONVERGED = 0.01  # largest difference from the accuracy of the last epoch: one point


@dataclass(frozen=True)
class Quantity:
    """A number of a published row: its name, its unit, and its column, or two columns for the ends of a range.

    `is_headline` marks the accuracy that short tables show, `is_time` a number that depends on the hardware, and
    `depends_on_budget` a number that depends on how many images and epochs are trained, so that reduced runs are not
    compared with it.
    """

    name: str
    unit: str
    columns: tuple[str, ...]
    ours: Ours
    is_headline: bool = False
    is_time: bool = False
    depends_on_budget: bool = False


def at(path: str, scale: float = 1.0) -> Ours:
    """scale x the value at a dotted path of the result, such as `test.accuracy` or `inference_seconds_per_batch.0`."""

    def ours(result: Result, epochs: Epochs) -> float | None:
        found: Any = result
        for part in path.split("."):
            found = _item(found, part)
        return None if found is None else scale * found

    return ours


def _item(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part)
    if isinstance(value, Sequence) and int(part) < len(value):
        return value[int(part)]
    return None


def initial_accuracy(result: Result, epochs: Epochs) -> float | None:
    """Test accuracy after the first epoch, in %; only with train.watch=test."""
    accuracies = _test_accuracies(epochs)
    return 100 * accuracies[0] if accuracies else None


def convergence_epochs(result: Result, epochs: Epochs) -> float | None:
    """The first epoch, counted from 1, whose test accuracy is within one point of the last epoch's; only with
    train.watch=test.

    The report says "stabilises" without a definition. This definition is ours.
    """
    accuracies = _test_accuracies(epochs)
    if not accuracies:
        return None
    return float(
        next(number for number, accuracy in enumerate(accuracies, 1) if abs(accuracy - accuracies[-1]) <= CONVERGED)
    )


def _test_accuracies(epochs: Epochs) -> list[float]:
    """The test accuracy of each epoch, or an empty list if any is missing."""
    accuracies = [accuracy for record in epochs if (accuracy := record.get("test_accuracy")) is not None]
    return accuracies if len(accuracies) == len(epochs) else []


def final_validation_loss(result: Result, epochs: Epochs) -> float | None:
    """Validation loss of the last epoch."""
    return epochs[-1].get("validation_loss") if epochs else None


def smoothed_validation_loss(result: Result, epochs: Epochs) -> float | None:
    """Validation loss at the last epoch as TensorBoard smooths it (see `favorit.smoothing.smooth`)."""
    losses = [loss for record in epochs if (loss := record.get("validation_loss")) is not None]
    return smooth(losses)[-1] if losses else None


def step_milliseconds(result: Result, epochs: Epochs) -> float | None:
    """Training time per optimizer step."""
    seconds, steps = result.get("train_seconds"), result.get("steps")
    return None if seconds is None or not steps else 1e3 * seconds / steps


def batch_milliseconds(batch: int) -> Ours:
    """Mean inference time of a batch of this size; None for a run that was timed at another size."""

    def ours(result: Result, epochs: Epochs) -> float | None:
        return (
            at("inference_seconds_per_batch.0", 1e3)(result, epochs) if result.get("inference_batch") == batch else None
        )

    return ours


def class_score(score: str, label: int | None) -> Ours:
    """100 x precision, recall or f1 of the class `label`; the mean over classes if `label` is None."""

    def ours(result: Result, epochs: Epochs) -> float | None:
        scores = result.get("test", {}).get(score)
        if not scores or (label is not None and label >= len(scores)):
            return None
        return 100 * (sum(scores) / len(scores) if label is None else scores[label])

    return ours


# Quantities that several tables share.
def headline(name: str, *columns: str) -> Quantity:
    """The accuracy that short tables show."""
    return Quantity(name, "%", columns, at("test.accuracy", 100), is_headline=True)


def epoch_seconds(*columns: str) -> Quantity:
    return Quantity(
        "training time per epoch", "s", columns, at("train_seconds_per_epoch"), is_time=True, depends_on_budget=True
    )


def inference_seconds(*columns: str) -> Quantity:
    return Quantity(
        "inference time, test set", "s", columns, at("inference_seconds"), is_time=True, depends_on_budget=True
    )
