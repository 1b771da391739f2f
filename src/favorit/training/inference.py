"""Inference with the weights of a run: predictions, features, and its test repeated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from favorit import seeds
from favorit.config import RunConfig
from favorit.data import DataSet, Preprocess, build_preprocess, find_images, load_dataset, read_image
from favorit.errors import FavoritError
from favorit.model import ViT, create_model
from favorit.model.outline import check_memory
from favorit.training.checkpoint import load_weights, selected_weights
from favorit.training.diagnosis import diagnose
from favorit.training.evaluation import evaluate, report
from favorit.training.find import open_run
from favorit.training.loaders import build_loaders
from favorit.training.records import status
from favorit.training.run import Run, run_id
from favorit.training.saved import is_edited
from favorit.training.stored import StoredRun

BATCH = 256


@dataclass(frozen=True)
class TrainedModel:
    """A trained model that takes raw uint8 images. If `half`, it runs under bf16 autocast, as in training."""

    model: ViT
    classes: tuple[str, ...]
    preprocess: Preprocess
    image_size: tuple[int, int]
    channels: int
    half: bool = False

    @property
    def precision(self) -> partial[torch.autocast]:
        """Creates the context of a forward pass."""
        return partial(torch.autocast, "cpu", torch.bfloat16, enabled=self.half)

    def predict(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) at the data set's size, a tensor or numpy array -> probabilities (N, classes)."""
        return self._batched(lambda part: self.model(part).float().softmax(-1), images)

    def features(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) at the data set's size -> tokens after the last block (N, tokens, width)."""
        return self._batched(self.model.features, images)

    def _batched(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        expected = (self.channels, *self.image_size)
        if isinstance(images, np.ndarray):
            images = torch.from_numpy(images)
        if not isinstance(images, Tensor):
            raise FavoritError(
                f"images must be a tensor or numpy array, not {type(images).__name__}: for files, use favorit predict"
            )
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != expected:
            needed = f"uint8 of shape (N, {', '.join(map(str, expected))})"
            raise FavoritError(f"images must be {needed}, not {images.dtype} {tuple(images.shape)}")
        with torch.inference_mode(), self.precision():
            found = torch.cat([function(self.preprocess(batch)) for batch in images.split(BATCH)])
        if not (finite := found.flatten(1).isfinite().all(1)).all():
            first = self.preprocess(images[~finite][:1])
            raise FavoritError(
                f"the model's outputs for {(~finite).sum()} of {len(images)} images are not finite: "
                f"{diagnose(self.model, first, self.precision)}"
            )
        return found


def load(run: str | Path | Run) -> TrainedModel:
    """The model of a run with the weights that `train.select` chose, in evaluation mode."""
    stored = open_run(run.path if isinstance(run, Run) else run)
    saved, result = stored.config(), stored.result()
    config, card = RunConfig(**saved["config"]), saved["data"]
    name = selected_weights(config)
    weights = stored.weights(name)
    check_memory(config.model)
    model = create_model(config.model, seed=seeds.derive(config.seed, "model")).eval()
    _warn_if_edited(stored, saved, config)
    recorded = result.get("weights", {}) if result is not None and result["status"] == "complete" else {}
    load_weights(model, weights, recorded.get(name))
    preprocess = build_preprocess(config.data.preprocess, card["mean"], card["std"])
    return TrainedModel(
        model,
        tuple(card["classes"]),
        preprocess,
        tuple(card["image_size"]),
        card["channels"],
        config.train.precision == "bf16",
    )


def _warn_if_edited(run: StoredRun, saved: dict[str, Any], config: RunConfig) -> None:
    """Warns if config.json does not have the identifier or the sha256 that the run recorded."""
    expected, recorded = run_id(config, saved["data"]["digest"]), saved.get("id", run.id)
    if is_edited(saved) or expected != recorded:
        reason = f"identifier {expected}, not {recorded}" if expected != recorded else "its sha256 differs"
        warnings.warn(
            f"{run.path / 'config.json'} was edited after training started ({reason}): "
            "results and weights may belong to another configuration",
            stacklevel=3,
        )


def load_data(path: str | Path, data_dir: str | Path | None = None) -> DataSet:
    """The data set that a run was trained on.

    Raises an error if its content has changed: another split could test on images that the run has trained on.
    """
    saved = open_run(path).config()
    name, absolute = RunConfig(**saved["config"]).data.name, saved["data"].get("name")
    try:
        data = load_dataset(absolute or name, data_dir)
    except FavoritError:  # images and working directory may have moved together: try the path as the user wrote it
        data = load_dataset(name, data_dir)
    if data.digest != saved["data"]["digest"]:
        raise FavoritError(f"{name} is not the data set that {path} was trained on: its content has changed")
    return data


def evaluate_run(path: str | Path, data_dir: str | Path | None = None) -> dict[str, Any]:
    """Repeats the test of a complete run on its own test images: metrics, times, size, flags and classes."""
    run = open_run(path)
    saved, result = run.config(), run.result()
    state = status(run, result)
    if result is None or state != "complete":
        reason = "only the weights that a complete run selected can be tested"
        raise FavoritError(f"{path} is {state}, not complete: {reason}; `favorit runs` lists all runs")
    trained, config = load(path), RunConfig(**saved["config"])
    data = load_data(path, data_dir)
    loader = build_loaders(config, data, 0, 1).test
    found = evaluate(trained.model, loader, torch.device("cpu"), trained.precision)
    if wrong := int((~found.logits.isfinite().all(1)).sum()):
        where = diagnose(trained.model, next(loader.epoch(0)).images, trained.precision)
        raise FavoritError(
            f"{path}: the logits of {wrong} of {len(found.logits)} test images are not finite; {where}: train again"
        )
    image = torch.zeros(1, config.model.channels, *config.model.image_size)
    return {"classes": trained.classes, "flags": result["flags"], **report(trained.model, found, image)}


class Prediction(NamedTuple):
    """An image file with its most probable classes, or the error if it cannot be read."""

    file: Path
    classes: list[tuple[str, float]]
    error: str | None = None


def predict_files(path: str | Path, images: Sequence[Path], top: int = 1) -> list[Prediction]:
    """The `top` most probable classes of each image file. A folder is replaced by all images in and below it."""
    trained, files = load(path), find_images(images)
    batches = (_predict(trained, files[start : start + BATCH], top) for start in range(0, len(files), BATCH))
    return [prediction for batch in batches for prediction in batch]


def _predict(trained: TrainedModel, files: list[Path], top: int) -> list[Prediction]:
    pixels, errors = {}, {}
    for index, file in enumerate(files):
        try:
            pixels[index] = read_image(file, trained.image_size, trained.channels)
        except FavoritError as error:
            errors[index] = str(error)
    classes: dict[int, list[tuple[str, float]]] = {}
    if pixels:
        top_values, top_classes = trained.predict(torch.stack([*pixels.values()])).topk(min(top, len(trained.classes)))
        for index, labels, values in zip(pixels, top_classes.tolist(), top_values.tolist(), strict=True):
            classes[index] = [(trained.classes[label], value) for label, value in zip(labels, values, strict=True)]
    return [Prediction(file, classes.get(index, []), errors.get(index)) for index, file in enumerate(files)]
