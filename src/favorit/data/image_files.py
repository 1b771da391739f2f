"""Image files: finding them, and reading them as uint8 tensors of one size.

Every image is rotated according to its EXIF tag and converted to 8-bit RGB or gray.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from favorit import measure
from favorit.data.fit import Size, fit_picture
from favorit.errors import FavoritError

if TYPE_CHECKING:
    import PIL.Image

PathOrPicture: TypeAlias = "str | os.PathLike[str] | PIL.Image.Image"
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MAX_NAMED = 5


@dataclass(frozen=True)
class ReadImages:
    """`pixels` uint8 (N, 3, H, W), black where a file could not be read; the size of each image in its file, None if
    unreadable; and the error of each unreadable file.
    """

    pixels: Tensor
    sizes: list[Size | None]
    errors: dict[int, str]


def read_image(path: PathOrPicture, size: Size, channels: int = 3, fit: str = "resize") -> Tensor:
    """One image file or PIL image as uint8 (channels, height, width); `size` is (height, width), `fit` in FITS."""
    return _tensor(fit_picture(open_upright(path, channels), fit, size))


def read_images(files: Sequence[Path], size: Size, fit: str) -> ReadImages:
    """All images as RGB, read in several threads."""
    needed, free = len(files) * 3 * size[0] * size[1], measure.free_memory()
    if free is not None and needed > free:
        raise FavoritError(
            f"{len(files):,} images of {size[0]} x {size[1]} need {needed / 2**30:,.1f} GiB and {free / 2**30:.1f} are "
            "free: use a smaller image size"
        )
    pixels = torch.zeros((len(files), 3, *size), dtype=torch.uint8)
    sizes: list[Size | None] = [None] * len(files)

    def load(index: int) -> str | None:
        """Reads an image into `pixels`; returns the error if it cannot be read, else None."""
        try:
            picture = open_upright(files[index])
        except FavoritError as error:
            return str(error)
        pixels[index] = _tensor(fit_picture(picture, fit, size))
        sizes[index] = picture.height, picture.width
        return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        errors = {index: error for index, error in enumerate(pool.map(load, range(len(files)))) if error is not None}
    return ReadImages(pixels, sizes, errors)


def open_upright(path: PathOrPicture, channels: int = 3) -> Any:
    """The image of a file, or a PIL image, as a PIL image, upright, RGB or gray, at its own size."""
    from PIL import Image, ImageOps

    if isinstance(path, Image.Image) and not (path.width and path.height):
        raise FavoritError(f"an image of {path.width} x {path.height} pixels cannot be read: give one with pixels")
    try:
        with nullcontext(path) if isinstance(path, Image.Image) else Image.open(path) as opened:
            upright = _eight_bits(ImageOps.exif_transpose(opened))
            if "transparency" in upright.info:
                upright = upright.convert("RGBA")
            return upright.convert("RGB" if channels == 3 else "L")
    except FileNotFoundError:
        raise FavoritError(f"{path}: file not found") from None
    except Exception as error:  # for damaged files PIL raises struct.error, TypeError, SyntaxError and others
        raise FavoritError(f"{path}: cannot be read as an image ({error})".replace("\n", " ")) from None


def _tensor(picture: Any) -> Tensor:
    """uint8 (C, height, width) of a PIL image."""
    pixels = torch.from_numpy(np.asarray(picture).copy())
    return pixels.permute(2, 0, 1).contiguous() if pixels.ndim == 3 else pixels[None]


def _eight_bits(image: Any) -> Any:
    """The image with 16-bit pixels scaled to 8 bits. PIL's own conversion would clip values above 255.

    32-bit pixels are an error, because they have no agreed range.
    """
    if image.mode.startswith("I;16"):
        from PIL import Image

        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels, PIL mode {image.mode}: save it with 8 or 16 bits")
    return image


def common_square(files: Sequence[Path], largest: int) -> int | None:
    """The side of the images if all are squares of one size up to `largest`, else None. Skips unreadable files."""
    from PIL import Image

    sizes: set[tuple[int, int]] = set()
    for file in files:
        try:
            with Image.open(file) as image:
                sizes.add(image.size)
        except Exception:
            continue
        if len(sizes) > 1:
            return None
    width, height = sizes.pop() if sizes else (0, 1)
    return width if width == height <= largest else None


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The given files; a folder is replaced by all images in and below it. A folder without images is an error."""
    found: list[Path] = []
    for path in paths:
        inside = [file for folder in _folders(path) for file in files_in(folder)] if path.is_dir() else [path]
        if not inside:
            raise FavoritError(f"{path}: no images in this folder, expected {' '.join(EXTENSIONS)} files")
        found += inside
    return found


def files_in(folder: Path) -> list[Path]:
    """The image files of a folder. Broken links are included, so that reading them raises an error."""
    named = (p for p in folder.iterdir() if p.suffix.lower() in EXTENSIONS and not p.name.startswith("."))
    return sorted(p for p in named if p.is_file() or p.is_symlink())


def named(files: Sequence[str]) -> str:
    """The first files and the number of others, for messages."""
    more = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
    return f"{', '.join(files[:MAX_NAMED])}{more}"


def _folders(path: Path) -> list[Path]:
    """A folder and all folders below it."""
    return [path, *sorted(below for below in path.rglob("*") if below.is_dir())]
