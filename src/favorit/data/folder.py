"""A user's own images: PATH/class/*.png, or PATH/train, PATH/val and PATH/test with class folders inside.

Without an image size, training images that are all squares of one size up to LARGEST_KEPT keep their size. All others
are brought to one size, by default cropped in the center to a square of SIDE pixels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from favorit.data.fit import DEFAULT_FIT, Size
from favorit.data.image_files import EXTENSIONS, ReadImages, common_square, files_in, named, read_images
from favorit.data.images import DataSet, ImageFiles, Images, make_dataset
from favorit.data.notes import folder_notes
from favorit.data.splits import hold_out_test
from favorit.errors import FavoritError

PARTS = ("train", "val", "test")
# Square images of one size up to LARGEST_KEPT keep their size; all others get SIDE x SIDE pixels.
SIDE, LARGEST_KEPT = 64, 128


@dataclass(frozen=True)
class Reading:
    """How the files of a folder become images of one size.

    `size` applies to all images. `fitted_size` applies unless they are equal squares that keep their size. `legacy`
    reads as favorit 0.1.0 did: squeezed to squares, and the test part may lack a small class.
    """

    fit: str = DEFAULT_FIT
    size: Size | None = None
    fitted_size: Size | None = None
    skip_unreadable: bool = False
    legacy: bool = False


def load_folder(path: str, reading: Reading, seed: int) -> DataSet:
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
    has_parts = (root / "train").is_dir() and not files_in(root / "train")
    if has_parts:
        _refuse_unknown_parts(root)
    listed = _list_files(root, has_parts)
    size = reading.size or _kept_size(listed["train"]) or reading.fitted_size or (SIDE, SIDE)
    found = {part: read_images(files, size, reading.fit) for part, files in listed.items()}
    skipped = _unreadable(root, listed, found)
    if skipped and not reading.skip_unreadable:
        total = sum(map(len, listed.values()))
        fix = "repair or remove them, or skip them with --skip-unreadable (data.skip_unreadable=True)"
        raise FavoritError(f"{root}: {len(skipped)} of {total} images cannot be read: {named(skipped)}: {fix}")
    classes = tuple(dict.fromkeys(file.parent.name for file in listed["train"]))
    parts = {part: _part(root, listed[part], found[part], classes) for part in listed}
    _refuse_unreadable_classes(root, parts["train"], classes, len(skipped))
    if "test" not in parts:
        _check_test_split(path, root, parts["train"].images.labels, classes)
        labels = parts["train"].images.labels
        kept, held_out = hold_out_test(labels, len(classes), seed, every_class=not reading.legacy)
        parts |= {"train": parts["train"].at(kept), "test": parts["train"].at(held_out)}
    data = make_dataset(
        f"folder:{path}",
        classes,
        parts["train"].images,
        parts["test"].images,
        validation=parts["val"].images if "val" in parts else None,
        licence="yours",
        citation="yours",
    )
    files = ImageFiles(root, parts["train"].files, parts["test"].files, parts["train"].sizes, tuple(skipped))
    names = {part: (own.files, own.images) for part, own in parts.items()}
    return replace(data, fit=reading.fit, files=files, notes=tuple(folder_notes(classes, names, skipped)))


@dataclass(frozen=True)
class _Part:
    """The readable images of a part, their paths relative to the root, and their sizes in the files."""

    images: Images
    files: tuple[str, ...]
    sizes: tuple[Size, ...]

    def at(self, indices: torch.Tensor) -> _Part:
        chosen = indices.tolist()
        files, sizes = tuple(self.files[i] for i in chosen), tuple(self.sizes[i] for i in chosen)
        return _Part(self.images.subset(indices), files, sizes)


def _part(root: Path, files: Sequence[Path], found: ReadImages, classes: Sequence[str]) -> _Part:
    readable = [index for index in range(len(files)) if index not in found.errors]
    labels = torch.tensor([classes.index(files[index].parent.name) for index in readable], dtype=torch.int64)
    return _Part(
        Images(found.pixels[readable] if found.errors else found.pixels, labels),
        tuple(str(files[index].relative_to(root)) for index in readable),
        tuple(size for size in found.sizes if size is not None),
    )


def _list_files(root: Path, has_parts: bool) -> dict[str, list[Path]]:
    """The image files of each part, sorted by class, then by name."""
    folders = {part: root / part for part in PARTS if (root / part).is_dir()} if has_parts else {"train": root}
    classes = _class_names(folders["train"])
    if len(classes) < 2:
        flat = len(files_in(folders["train"]))
        outside = f"{flat} image{'s' if flat > 1 else ''}, but in no class folder" if flat else "no images"
        found = f"only the class {classes[0]!r}" if classes else outside
        raise FavoritError(
            f"{folders['train']}: {found}, expected at least two class folders with {' '.join(EXTENSIONS)} files"
        )
    _refuse_empty_classes(folders["train"])
    listed = {}
    for part, folder in folders.items():
        own = _class_names(folder)
        if unknown := set(own) - set(classes):
            raise FavoritError(f"{folder}: the classes {', '.join(sorted(unknown))} have no training images")
        listed[part] = [file for name in own for file in files_in(folder / name)]
        if not listed[part]:
            raise FavoritError(f"{folder}: no images in its class folders")
        for file in listed[part]:
            try:
                str(file).encode()
            except UnicodeEncodeError:
                shown = os.fsencode(file).decode(errors="backslashreplace")
                raise FavoritError(f"{shown}: the name of a class or file is not UTF-8: rename it") from None
    return listed


def _kept_size(files: Sequence[Path]) -> Size | None:
    side = common_square(files, LARGEST_KEPT)
    return None if side is None else (side, side)


def _unreadable(root: Path, listed: dict[str, list[Path]], found: dict[str, ReadImages]) -> list[str]:
    """The unreadable files, relative to the root."""
    return [str(listed[part][index].relative_to(root)) for part, own in found.items() for index in own.errors]


def _refuse_unreadable_classes(root: Path, train: _Part, classes: Sequence[str], skipped: int) -> None:
    """Raises an error for a class that has no readable training image."""
    counts = torch.bincount(train.images.labels, minlength=len(classes)).tolist()
    for name, count in zip(classes, counts, strict=True):
        if not count:
            raise FavoritError(
                f"{root}: no training image of the class {name!r} is left after skipping {skipped} unreadable files: "
                "repair them or remove the class"
            )


def _check_test_split(path: str, root: Path, labels: torch.Tensor, classes: Sequence[str]) -> None:
    """Raises an error if the images cannot be divided into a training and a test part that both have every class."""
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    few = [name for name, count in zip(classes, counts, strict=True) if count < 2]
    if not few:
        return
    which = f"the {'class' if len(few) == 1 else 'classes'} {named([repr(name) for name in few])}"
    raise FavoritError(
        f"folder:{path}: {which} with one image cannot be in both the training "
        f"and the test part: add images, or put test images into {root / 'test'} and the others into {root / 'train'}"
    )


def _refuse_unknown_parts(root: Path) -> None:
    """Raises an error for a folder of classes next to `train` that would be ignored."""
    for folder in sorted(root.iterdir()):
        if folder.name not in PARTS and folder.is_dir() and _class_names(folder):
            raise FavoritError(f"{folder}: not a known part: rename it to val or test, or move it elsewhere")


def _refuse_empty_classes(folder: Path) -> None:
    """Raises an error for a class folder without images, which would be ignored."""
    for name in sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if not files_in(folder / name):
            raise FavoritError(
                f"{folder / name}: no {' '.join(EXTENSIONS)} files in this class folder: add images or remove it"
            )


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".") and files_in(p)))
