"""Synthetic runs with known numbers, as folders or packed files. No training takes place."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import favorit
from favorit import RunConfig
from favorit.data.datasets import CARDS, describe_dataset
from favorit.files import write_json
from favorit.reports.collect import collect
from favorit.reports.runs import StudyRuns
from favorit.study import Options, Study, load_study
from favorit.training.folder import RunFolder
from favorit.training.identity import resolve, run_id
from saved_data import RESULT, card

IMAGES = 200  # test images of a run; accuracies are multiples of 1 / IMAGES
ALONE = {"workers": 1, "nice": 0, "processor": "one"}  # the environment of a run that had the machine alone
SHARED = {**ALONE, "workers": 2}


def make_run(
    folder: Path,
    config: RunConfig,
    accuracy: float = 0.5,
    *,
    curve: Sequence[float] = (),
    classes: Sequence[str] = (),
    name: str = "",
    study: str = "",
    environment: Mapping[str, Any] = SHARED,
    status: str = "complete",
    shift: int = 0,
    packed: bool = False,
    **result: Any,
) -> Path:
    """Writes a run and returns its path. The first `accuracy` x IMAGES test images are right, or those after `shift`.

    `curve` has the test accuracy of each epoch; `result` are further fields of result.json. Status "training" has no
    result.
    """
    if config.data.name in CARDS:
        data = describe_dataset(config.data.name)
        config, classes = resolve(config, data), classes or data.classes
    classes = classes or [str(number) for number in range(config.model.classes)]
    config = config.replace(model=config.model.replace(classes=len(classes)))
    run = RunFolder(folder / run_id(config, config.data.name))
    run.path.mkdir(parents=True)
    saved: dict[str, Any] = {
        "schema": 1,
        "id": run.id,
        "layers": config.model.layout,
        "config": config.model_dump(mode="json"),
    }
    saved["data"] = {**card(len(classes), config.model.channels), "classes": list(classes), "name": config.data.name}
    saved |= {key: value for key, value in {"name": name, "study": study}.items() if value}
    write_json(run.path / "config.json", saved)
    for epoch, tested in enumerate(curve):
        run.append_epoch(_record(epoch, tested))
    if status == "failed":
        run.write_result({"status": "failed", "error": "the loss is not finite"})
    elif status == "complete":
        test = {**RESULT["test"], "accuracy": accuracy}
        run.write_result({**RESULT, "test": test, "environment": dict(environment), **result})
        run.write_predictions(*_predictions(accuracy, len(classes), shift))
    if not packed:
        return run.path
    path = favorit.pack(run.path, folder).path
    shutil.rmtree(run.path)
    return path


def make_study(
    folder: Path,
    study: str | Study,
    accuracies: Mapping[str, Sequence[float]],
    /,
    *,
    scale: str = "published",
    protocol: str = "published",
    **fields: Any,
) -> StudyRuns:
    """Writes runs of points of a study, {group: accuracy of each seed}; returns what a report collects of them."""
    study = load_study(study) if isinstance(study, str) else study
    options = Options(scale=scale, protocol=protocol)
    points = {point.group: point for point in study.named(options)}
    for group, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            config = study.config(points[group], options).replace(seed=seed)
            make_run(folder, config, accuracy, **fields)
    return next(each for each in collect(folder, [study]).studies if each.scale == scale)


def _record(epoch: int, accuracy: float) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "train_loss": 1.0,
        "train_accuracy": accuracy,
        "validation_loss": None,
        "validation_accuracy": None,
        "lr": 0.001,
        "train_seconds": 2.0,
        "validation_seconds": 0.0,
        "best": True,
        "test_loss": 1.0,
        "test_accuracy": accuracy,
        "test_seconds": 1.0,
    }


def _predictions(accuracy: float, classes: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels."""
    labels = np.arange(IMAGES) % classes
    right = np.roll(np.arange(IMAGES) < round(accuracy * IMAGES), shift)
    logits = np.zeros((IMAGES, classes), dtype=np.float32)
    logits[np.arange(IMAGES), np.where(right, labels, (labels + 1) % classes)] = 5.0
    return logits, labels
