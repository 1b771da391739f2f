"""A user's own images: PATH/class/*.png, or PATH/train, PATH/val and PATH/test with class folders inside.

Every image is rotated according to its EXIF tag, converted to RGB, and resized (not cropped) to a square. Without
`image_size`, training images that are all squares of one size up to LARGEST_KEPT keep their size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from favorit.data.images import DataSet, Images, make_dataset
from favorit.data.splits import hold_out_test
from favorit.errors import FavoritError

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
PARTS = ("train", "val", "test")
# Square images of one size up to LARGEST_KEPT keep their size; all others become squares of SIDE pixels.
SIDE, LARGEST_KEPT = 64, 128
MAX_NAMED = 5


def read_image(path: str | os.PathLike[str] | PILImage, size: tuple[int, int], channels: int = 3) -> Tensor:
    """An image file or PIL image as uint8 (channels, height, width), resized to `size` = (height, width)."""
    from PIL import Image, ImageOps

    try:
        with nullcontext(path) if isinstance(path, Image.Image) else Image.open(path) as opened:
            upright = _eight_bits(ImageOps.exif_transpose(opened))
            if "transparency" in upright.info:
                upright = upright.convert("RGBA")
            image = upright.convert("RGB" if channels == 3 else "L").resize(
                (size[1], size[0]), Image.Resampling.BILINEAR, reducing_gap=3
            )
    except FileNotFoundError:
        raise FavoritError(f"{path}: file not found") from None
    except Exception as error:  # for damaged files PIL raises struct.error, TypeError, SyntaxError and others
        raise FavoritError(f"{path}: cannot be read as an image ({error})".replace("\n", " ")) from None
    pixels = torch.from_numpy(np.asarray(image).copy())
    return pixels.permute(2, 0, 1).contiguous() if channels == 3 else pixels[None]


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


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The given files; a folder is replaced by all images in and below it. A folder without images is an error."""
    found: list[Path] = []
    for path in paths:
        inside = [file for folder in _folders(path) for file in _files(folder)] if path.is_dir() else [path]
        if not inside:
            raise FavoritError(f"{path}: no images in this folder, expected {' '.join(EXTENSIONS)} files")
        found += inside
    return found


def load_folder(path: str, image_size: int | None, seed: int) -> DataSet:
    """The data set in PATH/class/*, or in PATH/train with optional PATH/val and PATH/test.

    Without a test folder, a stratified 20 % of the images is held out as the test set.
    """
    root = Path(path).expanduser()
    if not path.strip():
        raise FavoritError("folder: the path is empty: write folder:PATH")
    if not root.is_dir():
        here = "" if root.is_absolute() else f" in {Path.cwd()}: relative paths start at the working directory"
        raise FavoritError(f"folder:{path}: folder not found{here}")
    # Images directly in PATH/train mean that "train" is the name of a class.
    has_parts = (root / "train").is_dir() and not _files(root / "train")
    train_folder = root / "train" if has_parts else root
    classes = _class_names(train_folder)
    if len(classes) < 2:
        found = f"only the class {classes[0]!r}" if classes else "no images"
        raise FavoritError(
            f"{train_folder}: {found}, expected at least two class folders with {' '.join(EXTENSIONS)} files"
        )
    _refuse_empty_classes(train_folder)
    image_size = image_size or _common_size(train_folder, classes) or SIDE
    train = _read(train_folder, classes, image_size)
    validation = test = None
    if has_parts:
        _refuse_unknown_parts(root)
        validation = _read(root / "val", classes, image_size) if (root / "val").is_dir() else None
        test = _read(root / "test", classes, image_size) if (root / "test").is_dir() else None
    if test is None:
        try:
            kept, held_out = hold_out_test(train.labels, len(classes), seed)
        except FavoritError as error:
            raise FavoritError(
                f"folder:{path}: {error}: add images, or put test images into {root / 'test'} "
                f"and training images into {root / 'train'}"
            ) from None
        train, test = train.subset(kept), train.subset(held_out)
    licence = citation = "yours"
    return make_dataset(
        f"folder:{path}", classes, train, test, validation=validation, licence=licence, citation=citation
    )


def _common_size(folder: Path, classes: tuple[str, ...]) -> int | None:
    """The side of the training images if all are squares of one size up to LARGEST_KEPT, else None."""
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


def _refuse_unknown_parts(root: Path) -> None:
    """Raises an error for a folder of classes next to `train` that would be ignored."""
    for folder in sorted(root.iterdir()):
        if folder.name not in PARTS and folder.is_dir() and _class_names(folder):
            raise FavoritError(f"{folder}: not a known part: rename it to val or test, or move it elsewhere")


def _refuse_empty_classes(folder: Path) -> None:
    """Raises an error for a class folder without images, which would be ignored."""
    for name in sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if not _files(folder / name):
            raise FavoritError(
                f"{folder / name}: no {' '.join(EXTENSIONS)} files in this class folder: add images or remove it"
            )


def _folders(path: Path) -> list[Path]:
    """A folder and all folders below it."""
    return [path, *sorted(below for below in path.rglob("*") if below.is_dir())]


def _files(folder: Path) -> list[Path]:
    """The image files of a folder. Broken links are included, so that reading them raises an error."""
    named = (p for p in folder.iterdir() if p.suffix.lower() in EXTENSIONS and not p.name.startswith("."))
    return sorted(p for p in named if p.is_file() or p.is_symlink())


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and _files(p)))


def _read(folder: Path, classes: tuple[str, ...], size: int) -> Images:
    """All images below `folder`, sorted by class, then by name."""
    unknown = set(_class_names(folder)) - set(classes)
    if unknown:
        raise FavoritError(f"{folder}: the classes {', '.join(sorted(unknown))} have no training images")
    labeled = [
        (file, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()
        for file in _files(folder / name)
    ]
    if not labeled:
        raise FavoritError(f"{folder}: no images in its class folders")
    pixels = torch.empty((len(labeled), 3, size, size), dtype=torch.uint8)

    def load(index: int) -> str | None:
        """Reads an image into `pixels`; returns its name if it cannot be read, else None."""
        try:
            pixels[index] = read_image(labeled[index][0], (size, size))
        except FavoritError:
            return str(labeled[index][0].relative_to(folder))
        return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        bad = [name for name in pool.map(load, range(len(labeled))) if name is not None]
    if bad:
        more = f" and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
        named = f"{', '.join(bad[:MAX_NAMED])}{more}"
        raise FavoritError(
            f"{folder}: {len(bad)} of {len(labeled)} images cannot be read: {named}: repair or remove them"
        )
    return Images(pixels, torch.tensor([label for _, label in labeled]))
