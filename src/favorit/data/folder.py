"""A user's own images: PATH/class/*.png, or PATH/train, PATH/val and PATH/test with classes inside.

Every image is turned upright by its EXIF tag, converted to RGB and, unless all are squares of one size already, resized
whole (not cropped) to a square.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from favorit.data.images import DataSet, Images, make_dataset
from favorit.data.splits import split
from favorit.errors import FavoritError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
PARTS = ("train", "val", "test")
TEST_FRACTION = 0.2
# The side of squares that images of several sizes, or of a size above the second, become.
SIDE, LARGEST_KEPT = 64, 128
NAMED_AT_MOST = 5


def read_image(path: str | os.PathLike[str], size: tuple[int, int], channels: int = 3) -> Tensor:
    """One image file as uint8 (channels, height, width), resized to `size` = (height, width)."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            upright = _eight_bits(ImageOps.exif_transpose(opened))
            if "transparency" in upright.info:
                upright = upright.convert("RGBA")
            image = upright.convert("RGB" if channels == 3 else "L").resize(
                (size[1], size[0]), Image.Resampling.BILINEAR, reducing_gap=3
            )
    except FileNotFoundError:
        raise FavoritError(f"{path}: there is no such file") from None
    except Exception as error:  # damaged files make PIL raise anything: struct.error, TypeError, SyntaxError, its own
        raise FavoritError(f"{path}: cannot be read as an image ({error})".replace("\n", " ")) from None
    pixels = torch.from_numpy(np.asarray(image).copy())
    return pixels.permute(2, 0, 1).contiguous() if channels == 3 else pixels[None]


def _eight_bits(image: Any) -> Any:
    """16 bits scaled to 8, where PIL's own conversion would make everything above 255 white; 32 bits have no agreed
    range.
    """
    if image.mode.startswith("I;16"):
        from PIL import Image

        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits, PIL's mode {image.mode}: save it with 8 or 16")
    return image


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The files as given, and for a folder the images in it and in its folders; an error where that is none."""
    found: list[Path] = []
    for path in paths:
        inside = [file for folder in _folders(path) for file in _files(folder)] if path.is_dir() else [path]
        if not inside:
            raise FavoritError(f"{path}: no images in this folder: expected {' '.join(EXTENSIONS)} files")
        found += inside
    return found


def load_folder(path: str, image_size: int | None, seed: int) -> DataSet:
    """PATH/class/*, or PATH/train with PATH/val and PATH/test beside it; without a test folder a stratified 20 % is set
    aside.
    """
    root = Path(path).expanduser()
    if not path.strip():
        raise FavoritError("folder: names no folder: write folder:PATH")
    if not root.is_dir():
        here = "" if root.is_absolute() else f" in {Path.cwd()}: a relative path counts from where the command is given"
        raise FavoritError(f"folder:{path}: there is no such folder{here}")
    # Images directly in PATH/train mean that "train" is a class, beside car and plane.
    divided = (root / "train").is_dir() and not _files(root / "train")
    whole = root / "train" if divided else root
    classes = _class_names(whole)
    if len(classes) < 2:
        found = f"only the class {classes[0]!r}" if classes else "no images"
        raise FavoritError(
            f"{whole}: {found}: expected two or more folders, one for a class, with {' '.join(EXTENSIONS)} files in each"
        )
    _refuse_empty(whole)
    image_size = image_size or _common_size(whole, classes) or SIDE
    train = _read(whole, classes, image_size)
    validation = test = None
    if divided:
        _refuse_strangers(root)
        validation = _read(root / "val", classes, image_size) if (root / "val").is_dir() else None
        test = _read(root / "test", classes, image_size) if (root / "test").is_dir() else None
    if test is None:
        count = max(len(classes), round(TEST_FRACTION * len(train)))
        if len(train) - count < len(classes):
            reason = f"{len(train)} images of {len(classes)} classes are too few to set some aside for testing"
            raise FavoritError(
                f"folder:{path}: {reason}: add some, or put test images into {root / 'test'} and these into {root / 'train'}"
            )
        try:
            kept, aside = split(train.labels, seed=seed, validation=count)
        except FavoritError as error:
            raise FavoritError(f"folder:{path}: too few images to set some aside for testing: {error}") from None
        train, test = Images(train.images[kept], train.labels[kept]), Images(train.images[aside], train.labels[aside])
    licence = citation = "yours"
    return make_dataset(
        f"folder:{path}", classes, train, test, validation=validation, licence=licence, citation=citation
    )


def _common_size(folder: Path, classes: tuple[str, ...]) -> int | None:
    """The side of the training images where all are squares of one size that is not too large to be kept."""
    from PIL import Image

    sizes: set[tuple[int, int]] = set()
    for file in (file for name in classes for file in _files(folder / name)):
        try:
            with Image.open(file) as image:
                sizes.add(image.size)
        except Exception:
            continue
        if len(sizes) > 1:
            return None
    width, height = sizes.pop() if sizes else (0, 1)
    return width if width == height <= LARGEST_KEPT else None


def _refuse_strangers(root: Path) -> None:
    """An error for a folder of classes beside train that would otherwise be ignored."""
    for folder in sorted(root.iterdir()):
        if folder.name not in PARTS and folder.is_dir() and _class_names(folder):
            raise FavoritError(
                f"{folder}: beside train there may be val and test: rename it to one of them, or move it elsewhere"
            )


def _refuse_empty(folder: Path) -> None:
    """An error for a class folder without images, which would otherwise be no class."""
    for name in sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if not _files(folder / name):
            raise FavoritError(
                f"{folder / name}: no {' '.join(EXTENSIONS)} files in this class folder: add or convert some, or remove it"
            )


def _folders(path: Path) -> list[Path]:
    """A folder and all below it."""
    return [path, *sorted(below for below in path.rglob("*") if below.is_dir())]


def _files(folder: Path) -> list[Path]:
    """The images of a folder. A link that leads nowhere is one that cannot be read, which whoever reads it will say."""
    named = (p for p in folder.iterdir() if p.suffix.lower() in EXTENSIONS and not p.name.startswith("."))
    return sorted(p for p in named if p.is_file() or p.is_symlink())


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and _files(p)))


def _read(folder: Path, classes: tuple[str, ...], size: int) -> Images:
    """All images below `folder`, class by class, in the order of their names."""
    strangers = set(_class_names(folder)) - set(classes)
    if strangers:
        raise FavoritError(f"{folder}: the classes {', '.join(sorted(strangers))} have no training images")
    labelled = [
        (file, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()
        for file in _files(folder / name)
    ]
    if not labelled:
        raise FavoritError(f"{folder}: no images in its class folders")
    pixels = torch.empty((len(labelled), 3, size, size), dtype=torch.uint8)

    def load(number: int) -> str | None:
        try:
            pixels[number] = read_image(labelled[number][0], (size, size))
        except FavoritError:
            return str(labelled[number][0].relative_to(folder))
        return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        bad = [name for name in pool.map(load, range(len(labelled))) if name is not None]
    if bad:
        more = f" and {len(bad) - NAMED_AT_MOST} more" if len(bad) > NAMED_AT_MOST else ""
        named = f"{', '.join(bad[:NAMED_AT_MOST])}{more}"
        raise FavoritError(
            f"{folder}: {len(bad)} of {len(labelled)} images cannot be read: {named}: repair or remove them"
        )
    return Images(pixels, torch.tensor([label for _, label in labelled]))
