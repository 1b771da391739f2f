"""The content of `result.json` for a run that ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from favorit import measure
from favorit.config import RunConfig
from favorit.model import ViT
from favorit.training.evaluation import Evaluation, report
from favorit.training.outcome import Record, outcome


def pruned_result(epochs: Sequence[Record]) -> dict[str, Any]:
    """The result of a pruned run: number of epochs and last validation metrics."""
    return {"status": "pruned", "epochs": len(epochs), "validation": _validation(epochs[-1])}


def complete_result(
    config: RunConfig,
    model: ViT,
    epochs: Sequence[Record],
    tested: Evaluation,
    plain: Evaluation | None,
    **fields: Any,
) -> dict[str, Any]:
    """The result of a complete run, with `fields` added. `model` has the tested weights.

    `plain` is the evaluation on test images without augmentation, if the run tests on augmented ones.
    """
    device = next(model.parameters()).device
    image = torch.zeros(1, config.model.channels, *config.model.image_size, device=device)
    return {
        "status": "complete",
        **outcome(epochs),
        "chosen_epoch": max((record["epoch"] for record in epochs if record["best"]), default=0),
        "validation": next((_validation(record) for record in reversed(epochs) if record["best"]), None),
        **report(model, tested, image),
        **({} if plain is None else {"plain_test": {"accuracy": plain.accuracy, "loss": plain.loss}}),
        "flags": [flag for flag, holds in _flags(config, model).items() if holds],
        **fields,
    }


def environment(device: torch.device, processes: int, workers: int) -> dict[str, Any]:
    """The machine and the settings under which the times of a run were measured."""
    return {
        **measure.fingerprint(),
        "device": str(device),
        "processes": processes,
        "workers": workers,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }


def _flags(config: RunConfig, model: ViT) -> dict[str, bool]:
    """Deviations from the evaluation protocol that a reader must know before comparing this result."""
    return {
        "watched": config.train.watch is not None,
        "one-token": model.tokens == 1,
        "augmented-test": config.data.augment_test,
        "test-subset": config.data.test_subset is not None,
    }


def _validation(record: Record) -> dict[str, float | None]:
    return {"loss": record["validation_loss"], "accuracy": record["validation_accuracy"]}
