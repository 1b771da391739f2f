"""Where a run is: in a folder of its own, or packed into one file beside such folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from favorit.errors import FavoritError
from favorit.training.folder import RunFolder
from favorit.training.packed import SUFFIX, PackedRun
from favorit.training.stored import StoredRun, has_ended


def open_run(path: str | Path) -> StoredRun:
    """The run at `path`: a folder, a packed file, or either of them named without `.zip`."""
    path = Path(path)
    if path.suffix == SUFFIX:
        return PackedRun(path)
    return _either(RunFolder(path), [f"{path}{SUFFIX}"])


def find_run(identifier: str, out: str | Path, *packs: str | Path) -> StoredRun:
    """The run of that identifier in `out`, or packed in one of `packs`. A run that is nowhere yet is the folder to
    train it in.
    """
    return _either(
        RunFolder(f"{out}{os.sep}{identifier}"), [f"{place}{os.sep}{identifier}{SUFFIX}" for place in (out, *packs)]
    )


def stored_runs(folder: str | Path) -> Iterator[StoredRun]:
    """The runs of a folder in the order of their identifiers, each once."""
    if os.path.isfile(folder):
        raise FavoritError(f"{folder} is a file: runs are in a folder")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    # Files that are being written begin with a dot.
    packed = {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith(".")}
    full = {name for name in names if os.path.exists(f"{folder}{os.sep}{name}{os.sep}config.json")}
    for identifier in sorted(packed | full):
        yield find_run(identifier, folder) if identifier in packed else RunFolder(Path(folder, identifier))


def _either(folder: RunFolder, packed: list[str]) -> StoredRun:
    """The folder, unless it has not ended and there is a packed run: what was finished once is not trained again."""
    for path in packed:
        if os.path.exists(path) and not _ended(folder):
            return PackedRun(path)
    return folder


def _ended(folder: RunFolder) -> bool:
    try:
        return has_ended(folder.result())
    except FavoritError:  # whoever reads the result of the folder will say so
        return True
