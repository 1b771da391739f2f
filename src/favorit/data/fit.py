"""How an image of any shape fills a rectangle. Sizes are (height, width).

resize      each side is scaled on its own, so the aspect ratio changes
crop        scaled until it covers the rectangle; the rest is cut off, half on each side
letterbox   scaled until it fits into the rectangle; the rest is black, half on each side
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional as F

Size = tuple[int, int]
Box = tuple[float, float, float, float]

# The scale, chosen from target / image of both sides; None scales each side on its own.
FITS: dict[str, Callable[..., float] | None] = {"resize": None, "crop": max, "letterbox": min}
DEFAULT_FIT = "crop"


def scaled_size(fit: str, image: Size, target: Size) -> Size:
    """The size of the whole image after scaling, before it is cropped or padded to `target`."""
    choose = FITS[fit]
    if choose is None:
        return target
    scale = choose(target[0] / image[0], target[1] / image[1])
    return max(1, round(image[0] * scale)), max(1, round(image[1] * scale))


def kept_box(fit: str, image: Size, target: Size) -> Box:
    """(left, top, right, bottom) of the part of the image that is kept, in its own pixels."""
    top, left = (
        side * max(0.0, 1 - end / scaled) / 2
        for side, end, scaled in zip(image, target, scaled_size(fit, image, target), strict=True)
    )
    return left, top, image[1] - left, image[0] - top


class Loss(NamedTuple):
    """What an image loses: the share of its area that is cut off, the share of the result that is black border, and
    the factor by which its aspect ratio changes, at least 1.
    """

    cut: float
    border: float
    stretch: float


WHOLE = Loss(0.0, 0.0, 1.0)


def fit_loss(fit: str, image: Size, target: Size) -> Loss:
    left, top, right, bottom = kept_box(fit, image, target)
    scaled = scaled_size(fit, image, target)
    height, width = map(min, scaled, target)
    ratio = scaled[0] * image[1] / (scaled[1] * image[0])
    return Loss(
        1 - (right - left) * (bottom - top) / (image[0] * image[1]),
        1 - height * width / (target[0] * target[1]),
        # Rounding to whole pixels changes the ratio a little.
        max(ratio, 1 / ratio) if FITS[fit] is None else 1.0,
    )


def fit_picture(picture: Any, fit: str, target: Size) -> Any:
    """The PIL image with `target` pixels."""
    from PIL import Image

    image = picture.height, picture.width
    height, width = map(min, scaled_size(fit, image, target), target)
    # Only the part that is kept is scaled.
    scaled = picture.resize(
        (width, height), Image.Resampling.BILINEAR, box=kept_box(fit, image, target), reducing_gap=3
    )
    if (height, width) == target:
        return scaled
    whole = Image.new(picture.mode, (target[1], target[0]))
    whole.paste(scaled, ((target[1] - width) // 2, (target[0] - height) // 2))
    return whole


def fit_tensor(values: Tensor, fit: str, target: Size, black: Tensor) -> Tensor:
    """float (B, C, H, W) -> (B, C, *target), scaled bilinearly. `black` is the value of black in each channel, (C,)."""
    image = values.shape[2], values.shape[3]
    if image == target:
        return values
    size = scaled_size(fit, image, target)
    shrinks = size[0] < image[0] or size[1] < image[1]
    values = F.interpolate(values, size, mode="bilinear", antialias=shrinks, align_corners=False)
    height, width = map(min, size, target)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    values = values[:, :, top : top + height, left : left + width]
    if (height, width) == target:
        return values
    whole = black[:, None, None].expand(len(values), -1, *target).clone()
    top, left = (target[0] - height) // 2, (target[1] - width) // 2
    whole[:, :, top : top + height, left : left + width] = values
    return whole
