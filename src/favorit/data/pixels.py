"""Images of a Python script as uint8 tensors with the channels first."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from favorit.errors import FavoritError

AT_ONCE = 256  # images converted from floats at a time


def as_batch(images: Any, name: str) -> Tensor:
    """uint8 (N, C, H, W), contiguous, from (N, H, W), (N, H, W, C) or (N, C, H, W) or a list of images."""
    if isinstance(images, list):
        found = [as_image(image, f"image {index} of {name}") for index, image in enumerate(images)]
        if len({image.shape for image in found}) > 1:
            raise FavoritError(f"{name} have different shapes: resize them to one size")
        images = torch.stack(found) if found else torch.empty(0)
    x = as_tensor(images, name)
    if x.ndim in (3, 4) and not len(x):
        raise FavoritError(f"there are no {name}: the shape is {tuple(x.shape)}")
    if x.ndim not in (3, 4) or not x.numel():
        raise FavoritError(f"{name} must have the shape (N, H, W), (N, H, W, C) or (N, C, H, W), not {tuple(x.shape)}")
    x = x[:, None] if x.ndim == 3 else _channels_first(x, name)
    return _as_uint8(x, name)


def as_image(image: Any, name: str) -> Tensor:
    """uint8 (C, H, W) from a PIL image, or an array or tensor (H, W), (H, W, C) or (C, H, W)."""
    x = as_tensor(image, name)
    if x.ndim not in (2, 3) or not x.numel():
        raise FavoritError(f"{name} must have the shape (H, W), (H, W, C) or (C, H, W), not {tuple(x.shape)}")
    x = x[None, None] if x.ndim == 2 else _channels_first(x[None], name)
    return _as_uint8(x, name)[0]


def is_pil(image: Any) -> bool:
    """True for a PIL image."""
    from PIL import Image

    return isinstance(image, Image.Image)


def as_tensor(values: Any, name: str) -> Tensor:
    """A tensor on the CPU from a tensor, a numpy array, or an object that converts itself to one, as PIL images do."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    if is_pil(values):
        # 16- and 32-bit pixels are rejected below, because PIL would clip them.
        values = values if values.mode in ("L", "RGB", "F") or values.mode.startswith("I") else values.convert("RGB")
    elif not hasattr(values, "__array__"):
        raise FavoritError(f"{name} must be an array or a tensor, not {type(values).__name__}")
    array = np.require(values, requirements=("C", "W"))  # torch shares the memory, and needs it writable
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        raise FavoritError(f"{name} must hold numbers, not {array.dtype}: convert names to 0, 1, 2, ...") from None


def _channels_first(x: Tensor, name: str) -> Tensor:
    """(N, C, H, W) from this shape or (N, H, W, C): the axis of size 1 or 3, else 2 or 4, holds the channels."""
    for sizes in ((1, 3), (2, 4)):
        axes = [axis for axis in (1, 3) if x.shape[axis] in sizes]
        if len(axes) == 1:
            return x if axes == [1] else x.permute(0, 3, 1, 2)
        if axes:
            break
    raise FavoritError(
        f"{name} of shape {tuple(x.shape)}: the channels cannot be told from rows and columns: one axis of 1 to 4 "
        "channels is needed, first or last"
    )


def _as_uint8(x: Tensor, name: str) -> Tensor:
    if x.dtype is torch.uint8:
        return x.contiguous()
    if not x.is_floating_point():
        raise FavoritError(f"{name} must be uint8, or floats in [0, 1], not {x.dtype}: convert 0..255 to uint8")
    if count := int(x.isnan().sum()):
        raise FavoritError(f"{name} must be floats in [0, 1], but {count:,} values are NaN: replace them")
    low, high = (float(end) for end in x.aminmax())
    if not (low >= 0 and high <= 1):
        fix = "divide them by 255" if low >= 0 and 1 < high <= 255 else "leave normalization to favorit"
        raise FavoritError(f"{name}: floats from {low:.3g} to {high:.3g}, not in [0, 1]: {fix}")
    pixels = torch.empty(x.shape, dtype=torch.uint8)
    for part, values in zip(pixels.split(AT_ONCE), x.split(AT_ONCE), strict=True):
        part.copy_(values.mul(255).round_())
    return pixels
