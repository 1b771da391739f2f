"""Inference with the weights of a run: predictions, features, and its test repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from favorit import seeds
from favorit.config import ModelConfig, RunConfig
from favorit.data import DataSet, Preprocess, as_dataset, build_preprocess, find_images, load_dataset, read_image
from favorit.data.datasets import ARRAYS
from favorit.data.pixels import as_batch, as_image, as_tensor, is_pil
from favorit.errors import FavoritError, check_positive
from favorit.model import ViT, create_model
from favorit.model.layout import layers, shorten
from favorit.training import evaluation
from favorit.training.checkpoint import load_weights
from favorit.training.evaluation import report
from favorit.training.find import open_run
from favorit.training.handle import Run
from favorit.training.loaders import build_loaders
from favorit.training.records import status

BATCH = 256
# The fields that a run stores about its data set.
CARD = {"digest", "classes", "mean", "std", "image_size", "channels"}


class Prediction(NamedTuple):
    """The most probable classes of an image with their probabilities, or the error if its file cannot be read.

    `file` is None for an image that was not read from a file.
    """

    file: Path | None
    classes: list[tuple[str, float]]
    error: str | None = None

    @property
    def label(self) -> str:
        """The most probable class."""
        if not self.classes:
            raise FavoritError(self.error or "no classes")
        return self.classes[0][0]

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<{self.error}>"
        file = "" if self.file is None else f"{self.file}: "
        return f"<{file}{', '.join(f'{name} {probability:.1%}' for name, probability in self.classes)}>"


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained model with the preprocessing of its run. If `half`, it runs under bf16 autocast, as in training."""

    model: ViT
    classes: tuple[str, ...]
    preprocess: Preprocess
    image_size: tuple[int, int]
    channels: int
    half: bool = False

    def __repr__(self) -> str:
        config, (height, width) = self.model.config, self.image_size
        mixers = shorten(layers(config.layout, config.performer, config.depth))
        return f"<TrainedModel {mixers}: images {height}x{width}x{self.channels}, {len(self.classes)} classes>"

    @property
    def precision(self) -> partial[torch.autocast]:
        """Creates the context of a forward pass."""
        return partial(torch.autocast, "cpu", torch.bfloat16, enabled=self.half)

    def predict(self, images: Any, top: int = 5) -> list[Prediction]:
        """The `top` most probable classes of each image.

        A file that cannot be read has an `error` instead of classes. If no file can be read, its error is raised.

        Args:
            images: A path, a PIL image or an array, or a list of these. A folder stands for all images in and below it.
                Files and PIL images are resized as in training. Arrays and tensors have the size of the training
                images: one image (H, W), (H, W, C) or (C, H, W), or a batch of them; uint8, or floats in [0, 1].
            top: The number of classes, at most all.

        Example:
            favorit.load("runs/0123456789abcdef").predict("cat.png")
        """
        check_positive(top=top)
        found = self.classify(list(self._sources(images)), top)
        if found and all(prediction.error is not None for prediction in found):
            raise FavoritError(str(found[0].error))
        return found

    def probabilities(self, images: Any) -> Tensor:
        """The probabilities (N, classes) of a batch of images, as an array or tensor of the training images' size."""
        return self._batched(lambda part: self.model(part).float().softmax(-1), images)

    def features(self, images: Any) -> Tensor:
        """The tokens after the last block, (N, tokens, width), of a batch of images as for `probabilities`."""
        return self._batched(self.model.features, images)

    def classify(self, sources: Sequence[Any], top: int) -> list[Prediction]:
        """The predictions for files, PIL images and arrays of one image each. Errors of files are recorded."""
        parts = (self._classify(sources[start : start + BATCH], top) for start in range(0, len(sources), BATCH))
        return [prediction for part in parts for prediction in part]

    def _classify(self, sources: Sequence[Any], top: int) -> list[Prediction]:
        pixels, errors = {}, {}
        for index, source in enumerate(sources):
            try:
                pixels[index] = self._pixels(source)
            except FavoritError as error:
                if not _is_path(source):
                    raise
                errors[index] = str(error)
        classes: dict[int, list[tuple[str, float]]] = {}
        if pixels:
            found = self.probabilities(torch.stack([*pixels.values()])).topk(min(top, len(self.classes)))
            for index, labels, values in zip(pixels, found.indices.tolist(), found.values.tolist(), strict=True):
                classes[index] = [(self.classes[label], value) for label, value in zip(labels, values, strict=True)]
        return [
            Prediction(Path(source) if _is_path(source) else None, classes.get(index, []), errors.get(index))
            for index, source in enumerate(sources)
        ]

    def _sources(self, images: Any) -> Iterable[Any]:
        """Single images: paths of files, PIL images, or tensors."""
        if isinstance(images, list | tuple):
            return [source for image in images for source in self._sources(image)]
        if _is_path(images):
            return find_images([Path(images)])
        if is_pil(images):
            return [images]
        x = as_tensor(images, "images")
        height, width = self.image_size
        shapes = {(height, width), (height, width, self.channels), (self.channels, height, width)}
        return [self._pixels(x)] if tuple(x.shape) in shapes else self._batch(x)

    def _pixels(self, source: Any) -> Tensor:
        """uint8 (C, H, W) of one image."""
        if _is_path(source) or is_pil(source):
            return read_image(source, self.image_size, self.channels)
        return self._batch(as_image(source, "the image")[None])[0]

    def _batch(self, images: Any) -> Tensor:
        """uint8 (N, C, H, W)."""
        pixels, expected = as_batch(images, "images"), (self.channels, *self.image_size)
        if tuple(pixels.shape[1:]) != expected:
            given = tuple(getattr(images, "shape", pixels.shape))
            raise FavoritError(
                f"images have the shape {given}, but the run was trained on {expected} (channels, rows, columns): "
                "give files or PIL images to have them resized"
            )
        return pixels

    def _batched(self, function: Callable[[Tensor], Tensor], images: Any) -> Tensor:
        with torch.inference_mode(), self.precision():
            return torch.cat([function(self.preprocess(batch)) for batch in self._batch(images).split(BATCH)])


def _is_path(source: object) -> bool:
    return isinstance(source, str | os.PathLike)


def load(run: str | Path | Run) -> TrainedModel:
    """The model of a run with the weights that `train.select` chose, in evaluation mode.

    Example:
        model = favorit.load("runs/0123456789abcdef")
        model.predict("cat.png")
    """
    stored = open_run(run.path if isinstance(run, Run) else run)
    saved = stored.config()
    config, card = RunConfig(**saved["config"]), saved["data"]
    if missing := CARD - card.keys():
        file = stored.path / "config.json"
        raise FavoritError(f"{file} is damaged (its data section lacks {', '.join(sorted(missing))}): restore it")
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
    )


def load_data(path: str | Path, data_dir: str | Path | None = None, data: Any = None) -> DataSet:
    """The data set that a run was trained on. `data` are the images of a run on arrays.

    Raises an error if its content has changed: another split could test on images that the run has trained on.
    """
    saved = open_run(path).config()
    name, absolute = saved["config"]["data"]["name"], saved["data"].get("name")
    if data is not None:
        data = as_dataset(data)
    elif name == ARRAYS:
        raise FavoritError(
            f"{path} was trained on arrays of a Python script: pass them again from Python, as data=(images, labels); "
            "predictions need no data, and favorit.Run(...).result has the stored test"
        )
    else:
        try:
            data = load_dataset(absolute or name, data_dir)
        except FavoritError:  # images and working directory may have moved together: try the path as written
            data = load_dataset(name, data_dir)
    if data.digest != saved["data"]["digest"]:
        raise FavoritError(f"{name} is not the data set that {path} was trained on: its content has changed")
    return data


class EvaluatedRun(dict[str, Any]):
    """The repeated test of a run: `test` (accuracy, loss, calibration and each class), times, size, flags, classes."""

    def __repr__(self) -> str:
        test = self["test"]
        flags = f", flags: {', '.join(self['flags'])}" if self["flags"] else ""
        return (
            f"<EvaluatedRun: accuracy {test['accuracy']:.2%}, loss {test['loss']:.4f}, "
            f"calibration error {test['calibration_error']:.4f}, {self['images_per_second']:,.0f} images/s{flags}; "
            f"keys: {', '.join(self)}>"
        )


def evaluate(run: str | Path | Run, data_dir: str | Path | None = None, *, data: Any = None) -> EvaluatedRun:
    """Repeats the test of a complete run on its own test images: metrics, times, size, flags and classes.

    `data` are the images of a run on arrays, as given to `favorit.train`.

    Example:
        favorit.evaluate("runs/0123456789abcdef")["test"]["accuracy"]
    """
    path = run.path if isinstance(run, Run) else run
    stored = open_run(path)
    saved, result = stored.config(), stored.result()
    state = status(stored, result)
    if result is None or state != "complete":
        reason = "only the weights that a complete run selected can be tested"
        raise FavoritError(f"{path} is {state}, not complete: {reason}; `favorit runs` lists all runs")
    trained, config = load(path), RunConfig(**saved["config"])
    loaded = load_data(path, data_dir, data)
    found = evaluation.evaluate(
        trained.model, build_loaders(config, loaded, 0, 1).test, torch.device("cpu"), trained.precision
    )
    image = torch.zeros(1, config.model.channels, *config.model.image_size)
    return EvaluatedRun(classes=trained.classes, flags=result["flags"], **report(trained.model, found, image))


def predict(run: str | Path | Run, images: Any, top: int = 5) -> list[Prediction]:
    """The `top` most probable classes of each image, by the model of a run: see `TrainedModel.predict`.

    Example:
        favorit.predict("runs/0123456789abcdef", ["cat.png", "dog.png"])
    """
    return load(run).predict(images, top)


def predict_files(run: str | Path | Run, images: Sequence[Path], top: int = 1) -> list[Prediction]:
    """As `predict`, but if no file can be read, the predictions hold the errors."""
    trained = load(run)
    return trained.classify(find_images(images), top)
