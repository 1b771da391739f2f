"""A trained model with its preprocessing: predictions for files, PIL images, arrays and tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from favorit.data import Preprocess, find_images, read_image
from favorit.data.pixels import as_batch, as_image, as_tensor, is_pil
from favorit.errors import FavoritError, check_positive
from favorit.model import ViT
from favorit.model.layout import layers, shorten
from favorit.training.diagnosis import diagnose

BATCH = 256


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
    """A trained model with the preprocessing of its run. If `half`, it runs under bf16 autocast, as in training.

    `fit` says how image files of another shape get the size `image_size`, as in training.
    """

    model: ViT
    classes: tuple[str, ...]
    preprocess: Preprocess
    image_size: tuple[int, int]
    channels: int
    half: bool = False
    fit: str = "resize"

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
            return read_image(source, self.image_size, self.channels, self.fit)
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
        pixels = self._batch(images)
        with torch.inference_mode(), self.precision():
            found = torch.cat([function(self.preprocess(batch)) for batch in pixels.split(BATCH)])
        if not (finite := found.flatten(1).isfinite().all(1)).all():
            first = self.preprocess(pixels[~finite][:1])
            raise FavoritError(
                f"the model's outputs for {(~finite).sum()} of {len(pixels)} images are not finite: "
                f"{diagnose(self.model, first, self.precision)}"
            )
        return found


def _is_path(source: object) -> bool:
    return isinstance(source, str | os.PathLike)
