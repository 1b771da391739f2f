"""The result of a run: what `result.json` holds when training ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from favorit import measure
from favorit.files import write_atomically
from favorit.training.checkpoint import load_weights
from favorit.training.evaluation import Evaluation, report
from favorit.training.outcome import outcome

if TYPE_CHECKING:
    from favorit.training.engine import Training


def prune(training: Training) -> dict[str, Any]:
    """Writes the result of a pruned run: how far it came. Its checkpoint stays."""
    epochs = training.folder.epochs()
    result = {"status": "pruned", "epochs": len(epochs), "validation": _validation(epochs[-1])}
    training.folder.write_result(result)
    return result


def complete(training: Training) -> dict[str, Any]:
    """Tests the chosen weights, once, and writes predictions and result."""
    folder, config, model = training.folder, training.config, training.model
    best = "best.safetensors" if training.ema is None else "best-ema.safetensors"
    load_weights(training.chosen, folder.path / best)
    tested = training.evaluate(training.test)
    if not tested.logits.isfinite().all():  # without validation images, the first check of the last update
        raise training.diverged("test logits are not finite", next(training.test.epoch(0)).images)
    write_atomically(folder.path / "predictions.npz", lambda path: _save_logits(tested, path))
    epochs = folder.epochs()
    image = torch.zeros(1, config.model.channels, *config.model.image_size, device=training.fabric.device)
    with training.fabric.autocast():
        paths = model.paths(config.train.batch_size)
    result = {
        "status": "complete",
        **outcome(epochs),
        "steps": training.progress.step,
        "chosen_epoch": max((record["epoch"] for record in epochs if record["best"]), default=0),
        "validation": next((_validation(record) for record in reversed(epochs) if record["best"]), None),
        **report(training.chosen, tested, image),
        **_plain_test(training),
        "paths": paths,
        "flags": [flag for flag, holds in _flags(training).items() if holds],
        "environment": {
            **measure.fingerprint(),
            "device": str(training.fabric.device),
            "processes": training.fabric.world_size,
            "workers": training.workers,
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
        },
    }
    folder.write_result(result)
    folder.tidy()
    return result


def _save_logits(tested: Evaluation, path: Path) -> None:
    with open(path, "wb") as file:
        np.savez_compressed(file, logits=tested.logits.numpy(), labels=tested.labels.numpy())


def _plain_test(training: Training) -> dict[str, Any]:
    """Accuracy and loss on test images without augmentation, if the protocol tests on augmented ones."""
    if training.plain_test is None:
        return {}
    tested = training.evaluate(training.plain_test)
    return {"plain_test": {"accuracy": tested.accuracy, "loss": tested.loss}}


def _flags(training: Training) -> dict[str, bool]:
    """Deviations from the evaluation protocol that a reader must know before comparing this result."""
    data = training.config.data
    return {
        "watched": training.config.train.watch is not None,
        "one-token": training.model.tokens == 1,
        "augmented-test": data.augment_test,
        "test-subset": data.test_subset is not None,
    }


def _validation(record: dict[str, Any]) -> dict[str, float | None]:
    return {"loss": record["validation_loss"], "accuracy": record["validation_accuracy"]}
