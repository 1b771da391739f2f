"""Preprocessing of all images, in training, validation and test: `letterbox(72)|normalise(0.5, 0.5)`.

x -> (x / 255 - mean) / std, then bilinear resizing, cropping or padding

Image files of different sizes are brought to this size when they are read (`read_spec`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from favorit.data.fit import fit_tensor
from favorit.errors import FavoritError
from favorit.spec import PositiveFloat, PositiveInt, Registry, Spec, parse_pattern


@dataclass(frozen=True)
class Preprocess:
    """uint8 (B, C, H, W) -> normalized float32. `mean` and `std` are per channel; `size` is (height, width).

    `fit` says how images of another shape fill `size`: a key of `FITS`.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int] | None = None
    fit: str = "resize"

    def __call__(self, images: Tensor) -> Tensor:
        scale = torch.tensor([1 / (255 * std) for std in self.std])[:, None, None]
        shift = torch.tensor([-mean / std for mean, std in zip(self.mean, self.std, strict=True)])[:, None, None]
        values = images.float().mul_(scale).add_(shift)
        if self.size is None:
            return values
        # Resizing and normalization commute. Normalizing first costs less if the image is enlarged.
        return fit_tensor(values, self.fit, self.size, shift.flatten())

    @property
    def mean_color(self) -> Tensor:
        """The mean as uint8 (C,)."""
        return (torch.tensor(self.mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the output for images of `size`."""
        return self.size or size


@dataclass(frozen=True)
class _Change:
    """The fields of Preprocess that one step sets."""

    size: tuple[int, int] | None = None
    fit: str | None = None
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None


PREPROCESSES: Registry[_Change] = Registry("preprocessing step")


@PREPROCESSES.register("resize")
def resize(height: PositiveInt, width: PositiveInt | None = None) -> _Change:
    """Bilinear resizing to `height` x `width` pixels, square without `width`; images of another shape are squeezed.

    Source: common practice.
    """
    return _Change((height, width or height), "resize")


@PREPROCESSES.register("crop")
def crop(height: PositiveInt, width: PositiveInt | None = None) -> _Change:
    """Resizing until the image covers `height` x `width` pixels, then a center crop: the aspect ratio is kept.

    Source: common practice.
    """
    return _Change((height, width or height), "crop")


@PREPROCESSES.register("letterbox")
def letterbox(height: PositiveInt, width: PositiveInt | None = None) -> _Change:
    """Resizing until the image fits into `height` x `width` pixels, then black borders: the whole image is kept.

    Source: common practice.
    """
    return _Change((height, width or height), "letterbox")


@PREPROCESSES.register("normalise", alias="normalize")
def normalise(mean: float | tuple[float, ...], std: PositiveFloat | tuple[PositiveFloat, ...]) -> _Change:
    """x <- (x / 255 - mean) / std: normalization with these values instead of the data set's own.

    One value applies to all channels. `normalize` is accepted too.

    Source: common practice.
    """
    return _Change(mean=mean, std=std)


def build_preprocess(text: str | None, mean: Sequence[float], std: Sequence[float]) -> Preprocess:
    """The preprocessing of a spec such as `resize(72)|normalise(0.5, 0.5)`.

    Without `normalise`, images are normalized with the data set's own `mean` and `std`.

    The length of `mean` is the number of channels.
    """
    size_step(text)
    result = Preprocess(tuple(mean), tuple(std))
    for spec in _steps(text):
        change = PREPROCESSES.build(spec)
        if change.size is not None and change.fit is not None:
            result = replace(result, size=change.size, fit=change.fit)
        if change.mean is not None and change.std is not None:
            result = replace(
                result,
                mean=_channels(change.mean, len(mean), str(spec)),
                std=_channels(change.std, len(std), str(spec)),
            )
    return result


def size_step(text: str | None) -> Spec | None:
    """The step of a preprocessing spec that sets the size of images; None if there is none, an error if several."""
    steps = [spec for spec in _steps(text) if PREPROCESSES.build(spec).size is not None]
    if len(steps) > 1:
        raise FavoritError(
            f"data.preprocess={text!r} has {len(steps)} sizes: keep one; crop and letterbox scale the image themselves"
        )
    return steps[0] if steps else None


def _steps(text: str | None) -> list[Spec]:
    return [] if text is None or text.strip() in ("", "none") else parse_pattern(text)


def _channels(value: float | tuple[float, ...], channels: int, where: str) -> tuple[float, ...]:
    values = value if isinstance(value, tuple) else (value,) * channels
    if len(values) != channels:
        raise FavoritError(
            f"{where}: {len(values)} values do not fit {channels} channels: give one, or one for each channel"
        )
    return values
