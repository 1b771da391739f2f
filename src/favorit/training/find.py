"""Finds runs on disk: each is a folder, or packed into one file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from favorit.errors import FavoritError, check_path
from favorit.training.folder import RunFolder
from favorit.training.packed import SUFFIX, PackedRun
from favorit.training.stored import StoredRun, has_ended


def open_run(path: str | Path) -> StoredRun:
    """The run at `path`: a folder, or a packed file with or without its suffix `.zip`."""
    check_path("run", path)
    path = Path(path)
    if path.suffix == SUFFIX:
        return PackedRun(path)
    return _either(RunFolder(path), [f"{path}{SUFFIX}"])


def find_run(identifier: str, out: str | Path, *packs: str | Path) -> StoredRun:
    """The run with this identifier in `out`, or packed in one of the folders `packs`.

    If it does not exist yet, this is the folder in `out` where training will store it.
    """
    return _either(
        RunFolder(f"{out}{os.sep}{identifier}"), [f"{place}{os.sep}{identifier}{SUFFIX}" for place in (out, *packs)]
    )


def resolve_run(text: str | Path, folder: str | Path = "runs") -> StoredRun:
    """The run at the path `text`, or the run in `folder` whose identifier starts with `text`."""
    if open_run(text).exists():
        return open_run(text)
    found = [run for run in stored_runs(folder) if run.id.startswith(str(text))]
    if len(found) > 1:
        named = ", ".join(run.id for run in found[:5])
        raise FavoritError(f"{text} is the start of {len(found)} runs in {folder}: {named}: write more characters")
    if not found:
        raise FavoritError(f"{text} is not a run: no folder with this path, and no run in {folder} starts with it")
    return found[0]


def stored_runs(folder: str | Path) -> Iterator[StoredRun]:
    """The runs of a folder sorted by identifier, each once."""
    check_path("folder", folder)
    if os.path.isfile(folder):
        raise FavoritError(f"{folder} is a file, not a folder of runs")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    # Names of files that are still being written start with a dot.
    packed = {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith(".")}
    full = {name for name in names if os.path.exists(f"{folder}{os.sep}{name}{os.sep}config.json")}
    for identifier in sorted(packed | full):
        yield find_run(identifier, folder) if identifier in packed else RunFolder(Path(folder, identifier))


def _either(folder: RunFolder, packed: list[str]) -> StoredRun:
    """The packed run if it exists and the run in the folder has not ended, else the folder. So no finished run is
    retrained.
    """
    for path in packed:
        if os.path.exists(path) and not _ended(folder):
            return PackedRun(path)
    return folder


def _ended(folder: RunFolder) -> bool:
    try:
        return has_ended(folder.result())
    except FavoritError:  # damaged: raised again when the result of the folder is read
        return True
