"""The test images of a run as files: their paths and digests. With them, the run can be tested again even if other
files of the folder have changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from favorit.data import DataSet, Images
from favorit.data.fit import FITS
from favorit.data.image_files import EXTENSIONS, read_images
from favorit.data.notes import image_digests
from favorit.errors import FavoritError
from favorit.files import SCHEMA, damaged, read_json, write_json
from favorit.training.folder import RunFolder

NAME = "test_files.json"


@dataclass(frozen=True)
class TestPart:
    """A data set without training images. `changed` are the paths of test images that are missing, unreadable or
    changed, by index; these images are black.
    """

    __test__ = False  # not a class of tests

    data: DataSet
    changed: dict[int, str]


def write_test_files(folder: RunFolder, files: Sequence[str], images: Tensor) -> None:
    digests = dict(zip(files, image_digests(images), strict=True))
    write_json(folder.path / NAME, {"schema": SCHEMA, "files": digests})


def read_test_part(run: Path, card: Mapping[str, Any], root: Path) -> TestPart:
    """The test images of a run, read from the files below `root`. `card` is the data section of its config.json."""
    digests = read_json(str(run / NAME)).get("files")
    if not isinstance(digests, dict) or not digests:
        raise damaged(run / NAME, "no files")
    if card.get("fit") not in FITS or card["channels"] != 3:
        raise damaged(run / "config.json", "a data section that is not that of a folder of images")
    classes, files = tuple(card["classes"]), list(digests)
    if any(Path(file).suffix.lower() not in EXTENSIONS for file in files):
        raise damaged(run / NAME, "paths that are not image files")
    if any(Path(file).is_absolute() or ".." in Path(file).parts for file in files):
        raise damaged(run / NAME, "paths outside of the folder")
    if any(Path(file).parent.name not in classes for file in files):
        raise damaged(run / NAME, "paths without a class")
    found = read_images([root / file for file in files], tuple(card["image_size"]), card["fit"])
    labels = torch.tensor([classes.index(Path(file).parent.name) for file in files])
    changed = {
        index: file
        for index, (file, digest) in enumerate(zip(files, image_digests(found.pixels), strict=True))
        if digest != digests[file] or index in found.errors
    }
    data = DataSet(
        name=card.get("name") or str(root),
        classes=classes,
        train=Images(found.pixels[:0], labels[:0]),
        test=Images(found.pixels, labels),
        mean=tuple(card["mean"]),
        std=tuple(card["std"]),
        licence="yours",
        citation="yours",
        digest=card["digest"],
        fit=card["fit"],
    )
    return TestPart(data, changed)


def has_test_files(run: Path) -> bool:
    return (run / NAME).is_file()


def existing_root(*paths: str | None) -> Path:
    """The first of these folders that exists."""
    given = list({os.path.abspath(path): path for path in paths if path is not None}.values())
    if found := next((Path(path) for path in given if Path(path).is_dir()), None):
        return found
    if not given:
        raise FavoritError("the run does not record the folder of its images: restore its config.json")
    raise FavoritError(f"{' and '.join(given)}: folder not found: the test images of the run were there; move it back")
