"""Inference with the weights of a run: predictions, features, and its test repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from favorit import seeds
from favorit.config import ModelConfig, RunConfig
from favorit.data import DataSet, Preprocess, build_preprocess, find_images, load_dataset, read_image, read_spec
from favorit.data.datasets import path_of, with_values
from favorit.data.fit import FITS
from favorit.data.image_files import named
from favorit.errors import FavoritError
from favorit.files import damaged
from favorit.model import ViT, create_model
from favorit.training.checkpoint import load_weights
from favorit.training.evaluation import evaluate, report
from favorit.training.find import open_run
from favorit.training.loaders import build_test_loaders
from favorit.training.records import status
from favorit.training.run import Run
from favorit.training.test_files import TestPart, existing_root, has_test_files, read_test_part

BATCH = 256
# The fields that a run stores about its data set.
CARD = {"digest", "classes", "mean", "std", "image_size", "channels"}
# Runs of favorit 0.1.0 have no field `fit`: their images were squeezed.
LEGACY_FIT = "resize"


@dataclass(frozen=True)
class TrainedModel:
    """A trained model that takes raw uint8 images. If `half`, it runs under bf16 autocast, as in training.

    `fit` says how image files of another shape get the size `image_size`, as in training.
    """

    model: ViT
    classes: tuple[str, ...]
    preprocess: Preprocess
    image_size: tuple[int, int]
    channels: int
    half: bool = False
    fit: str = "resize"

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
            return torch.cat([function(self.preprocess(batch)) for batch in images.split(BATCH)])


def load(run: str | Path | Run) -> TrainedModel:
    """The model of a run with the weights that `train.select` chose, in evaluation mode."""
    stored = open_run(run.path if isinstance(run, Run) else run)
    saved = stored.config()
    config, card = RunConfig(**saved["config"]), saved["data"]
    if missing := CARD - card.keys():
        file = stored.path / "config.json"
        raise FavoritError(f"{file} is damaged (its data section lacks {', '.join(sorted(missing))}): restore it")
    fit = card.get("fit", LEGACY_FIT)
    if fit not in [*FITS]:
        raise damaged(stored.path / "config.json", f"fit {fit!r} is not one of {', '.join(FITS)}")
    weights = stored.weights("best.safetensors" if config.train.ema is None else "best-ema.safetensors")
    model = create_model(ModelConfig(**saved["config"]["model"]), seed=seeds.derive(config.seed, "model")).eval()
    load_weights(model, weights)
    preprocess = build_preprocess(config.data.preprocess, card["mean"], card["std"])
    return TrainedModel(
        model,
        tuple(card["classes"]),
        preprocess,
        tuple(card["image_size"]),
        card["channels"],
        config.train.precision == "bf16",
        fit,
    )


def load_data(path: str | Path, data_dir: str | Path | None = None) -> DataSet:
    """The data set that a run was trained on.

    Raises an error if its content has changed: another split could test on images that the run has trained on.
    """
    saved = open_run(path).config()
    card, options = saved["data"], RunConfig(**saved["config"]).data
    legacy = "fit" not in card
    name = with_values(options.name, legacy=True) if legacy else read_spec(options)
    absolute = card.get("name", name)
    try:
        data = load_dataset(with_values(absolute, legacy=True) if legacy else absolute, data_dir)
    except FavoritError:  # images and working directory may have moved together: try the path as the user wrote it
        data = load_dataset(name, data_dir)
    if data.digest != saved["data"]["digest"]:
        raise FavoritError(f"{options.name} is not the data set that {path} was trained on: its content has changed")
    return data


def evaluate_run(path: str | Path, data_dir: str | Path | None = None, skip_unreadable: bool = False) -> dict[str, Any]:
    """Repeats the test of a complete run on its own test images: metrics, times, size, flags and classes.

    Of a folder, only the test images are read, so that other files may have changed. With `skip_unreadable`, test
    images that are missing, unreadable or changed are left out, listed in `skipped`, and the result is flagged.
    """
    run = open_run(path)
    saved, result = run.config(), run.result()
    state = status(run, result)
    if result is None or state != "complete":
        reason = "only the weights that a complete run selected can be tested"
        raise FavoritError(f"{path} is {state}, not complete: {reason}; `favorit runs` lists all runs")
    trained, config = load(path), RunConfig(**saved["config"])
    part = _test_part(run.path, saved, data_dir)
    if part.changed and (not skip_unreadable or len(part.changed) == len(part.data.test)):
        raise _changed(path, part)
    loader, _ = build_test_loaders(config, part.data, part.changed)
    found = evaluate(trained.model, loader, torch.device("cpu"), trained.precision)
    image = torch.zeros(1, config.model.channels, *config.model.image_size)
    left_out = {"skipped": list(part.changed.values())} if part.changed else {}
    flags = [*result["flags"], *(["incomplete-test"] if part.changed else [])]
    return {"classes": trained.classes, "flags": flags, **left_out, **report(trained.model, found, image)}


def _test_part(path: Path, saved: dict[str, Any], data_dir: str | Path | None) -> TestPart:
    """The test images of a run."""
    if not has_test_files(path):
        return TestPart(load_data(path, data_dir), {})
    card = saved["data"]
    return read_test_part(path, card, existing_root(path_of(card["name"]), path_of(saved["config"]["data"]["name"])))


def _changed(path: str | Path, part: TestPart) -> FavoritError:
    """The error for test images that are missing, unreadable or changed."""
    count, total = len(part.changed), len(part.data.test)
    files = named([*part.changed.values()])
    what = f"{count} of {total} test images of {path} are missing, unreadable or changed: {files}"
    others = f", or test the other {total - count} with --skip-unreadable" if count < total else ""
    return FavoritError(f"{what}: restore them{others}; the accuracy of the run is in its result.json")


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
            pixels[index] = read_image(file, trained.image_size, trained.channels, trained.fit)
        except FavoritError as error:
            errors[index] = str(error)
    classes: dict[int, list[tuple[str, float]]] = {}
    if pixels:
        top_values, top_classes = trained.predict(torch.stack([*pixels.values()])).topk(min(top, len(trained.classes)))
        for index, labels, values in zip(pixels, top_classes.tolist(), top_values.tolist(), strict=True):
            classes[index] = [(trained.classes[label], value) for label, value in zip(labels, values, strict=True)]
    return [Prediction(file, classes.get(index, []), errors.get(index)) for index, file in enumerate(files)]
