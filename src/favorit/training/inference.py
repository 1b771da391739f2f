"""The weights of a finished run at work: predictions, features, and its test once more."""

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
from favorit.data import DataSet, Preprocess, build_preprocess, find_images, load_dataset, read_image
from favorit.errors import FavoritError
from favorit.model import ViT, create_model
from favorit.training.checkpoint import load_weights
from favorit.training.evaluation import evaluate, report
from favorit.training.find import open_run
from favorit.training.loaders import load_parts
from favorit.training.records import status
from favorit.training.run import Run

# Images that are read and predicted at once.
TOGETHER = 256
# What a run keeps of its data.
CARD = {"digest", "classes", "mean", "std", "image_size", "channels"}


@dataclass(frozen=True)
class Loaded:
    """A trained model that takes images as they come; `half` computes as the run did with precision bf16."""

    model: ViT
    classes: tuple[str, ...]
    preprocess: Preprocess
    image_size: tuple[int, int]
    channels: int
    half: bool = False

    @property
    def precision(self) -> partial[torch.autocast]:
        """Makes the context of a forward pass."""
        return partial(torch.autocast, "cpu", torch.bfloat16, enabled=self.half)

    def predict(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) of the data set's size, a tensor or an array of numpy -> probabilities (N, classes)."""
        return self._each(lambda part: self.model(part).float().softmax(-1), images)

    def features(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) of the data set's size -> the tokens after the last block (N, tokens, width)."""
        return self._each(self.model.features, images)

    def _each(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        expected = (self.channels, *self.image_size)
        if isinstance(images, np.ndarray):
            images = torch.from_numpy(images)
        if not isinstance(images, Tensor):
            raise FavoritError(
                f"a run takes a tensor of images, not {type(images).__name__}: favorit predict reads files"
            )
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != expected:
            raise FavoritError(
                f"a run takes uint8 images of shape (N, {', '.join(map(str, expected))}), not {images.dtype} {tuple(images.shape)}"
            )
        with torch.inference_mode(), self.precision():
            return torch.cat([function(self.preprocess(part)) for part in images.split(TOGETHER)])


def load(run: str | Path | Run) -> Loaded:
    """The weights that validation chose, ready to predict."""
    stored = open_run(run.path if isinstance(run, Run) else run)
    saved = stored.config()
    config, card = RunConfig(**saved["config"]), saved["data"]
    if missing := CARD - card.keys():
        raise FavoritError(
            f"{stored.path / 'config.json'} is damaged (no {', '.join(sorted(missing))} of the data): restore it"
        )
    weights = stored.weights("best.safetensors" if config.train.ema is None else "best-ema.safetensors")
    model = create_model(ModelConfig(**saved["config"]["model"]), seed=seeds.derive(config.seed, "model")).eval()
    load_weights(model, weights)
    preprocess = build_preprocess(config.data.preprocess, card["mean"], card["std"])
    return Loaded(
        model,
        tuple(card["classes"]),
        preprocess,
        tuple(card["image_size"]),
        card["channels"],
        config.train.precision == "bf16",
    )


def load_data(path: str | Path, data_dir: str | Path | None = None) -> DataSet:
    """The data that a run was trained on, or an error: others would be divided otherwise into images it has seen and
    has not.
    """
    saved = open_run(path).config()
    name, whole = saved["config"]["data"]["name"], saved["data"].get("name")
    try:
        data = load_dataset(whole or name, data_dir)
    except FavoritError:  # a folder may have moved with the place that its name as written counts from
        data = load_dataset(name, data_dir)
    if data.digest != saved["data"]["digest"]:
        raise FavoritError(f"{name} is not the data that {path} was trained on: its content has changed")
    return data


def evaluate_run(path: str | Path, data_dir: str | Path | None = None) -> dict[str, Any]:
    """The test of a complete run anew, on the test images that it was tested on: metrics, times, size, its flags, and
    the classes.
    """
    run = open_run(path)
    saved, result = run.config(), run.result()
    state = status(run, result)
    if result is None or state != "complete":
        reason = "the test set is opened once, for the weights that a complete run has chosen"
        raise FavoritError(f"{path} is not complete but {state}: {reason}; `favorit runs` shows what is there")
    loaded, config = load(path), RunConfig(**saved["config"])
    data = load_data(path, data_dir)
    found = evaluate(loaded.model, load_parts(config, data, 0, 1).test, torch.device("cpu"), loaded.precision)
    image = torch.zeros(1, config.model.channels, *config.model.image_size)
    return {"classes": loaded.classes, "flags": result["flags"], **report(loaded.model, found, image)}


class Prediction(NamedTuple):
    """An image file with its most probable classes, or why there are none."""

    file: Path
    classes: list[tuple[str, float]]
    error: str | None = None


def predict_files(path: str | Path, images: Sequence[Path], top: int = 1) -> list[Prediction]:
    """For each image file (of a folder, the images in and below it) the `top` most probable classes."""
    loaded, files = load(path), find_images(images)
    found = (_predict(loaded, files[start : start + TOGETHER], top) for start in range(0, len(files), TOGETHER))
    return [prediction for part in found for prediction in part]


def _predict(loaded: Loaded, files: list[Path], top: int) -> list[Prediction]:
    pixels, errors = {}, {}
    for number, file in enumerate(files):
        try:
            pixels[number] = read_image(file, loaded.image_size, loaded.channels)
        except FavoritError as error:
            errors[number] = str(error)
    classes: dict[int, list[tuple[str, float]]] = {}
    if pixels:
        values, places = loaded.predict(torch.stack([*pixels.values()])).topk(min(top, len(loaded.classes)))
        for number, best, of_best in zip(pixels, places.tolist(), values.tolist(), strict=True):
            classes[number] = [(loaded.classes[place], value) for place, value in zip(best, of_best, strict=True)]
    return [Prediction(file, classes.get(number, []), errors.get(number)) for number, file in enumerate(files)]
