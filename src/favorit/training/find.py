"""Finds runs on disk: each is a folder, or packed into one file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from favorit.errors import FavoritError, check_path
from favorit.training.folder import RunFolder
from favorit.training.names import RunName, indexed_names, name_of
from favorit.training.packed import SUFFIX, PackedRun
from favorit.training.stored import StoredRun, has_ended

CANDIDATES = 5  # number of runs that an error lists


def open_run(run: str | Path, folder: str | Path = "runs") -> StoredRun:
    """The run at a path: a folder, or a packed file with or without its suffix `.zip`.

    Text that is no path is the start of the identifier or name of a run in `folder`, or in the folder before the last
    `/`. Raises an error if several runs start with it, or none.
    """
    found = find_runs(run, folder)
    if len(found) > 1:
        raise _ambiguous(run, found)
    return found[0]


def find_runs(run: str | Path, folder: str | Path = "runs") -> list[StoredRun]:
    """As `open_run`, but all runs that start with the text."""
    check_path("run", run)
    path = Path(run)
    if path.suffix == SUFFIX:
        return [PackedRun(path)]
    stored = _either(RunFolder(path), [f"{path}{SUFFIX}"])
    if stored.exists() or os.path.exists(path):
        return [stored]
    known: list[str] = []
    for place, start in {Path(folder): str(run), path.parent: path.name}.items():
        runs = {each.id: each for each in stored_runs(place)}
        if found := [identifier for identifier in runs if identifier.startswith(start)]:
            return [runs[identifier] for identifier in found]
        names = {identifier: name for identifier, (name, _) in stored_names(place).items()}
        if found := [identifier for identifier, name in names.items() if name == start]:
            return [runs[identifier] for identifier in found]
        if found := [identifier for identifier, name in names.items() if name.startswith(start)]:
            return [runs[identifier] for identifier in found]
        known += [*runs, *names.values()]
    searched = folder if path.parent == Path() else path.parent
    near = difflib.get_close_matches(path.name, known, n=1, cutoff=0.5)
    listing = "favorit runs" if str(searched) == "runs" else f"favorit runs {searched}"
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise FavoritError(
        f"{run} is not a run: there is no such folder, and no run in {searched} has an ID or name that starts with "
        f"it: {hint}`{listing}` lists the runs"
    )


def find_variant(run: str | Path, folder: str | Path = "runs") -> list[StoredRun]:
    """As `open_run`, or all runs of the only variant that the text names: `layout=softmax` stands for `layout=softmax
    seed=0` and `layout=softmax seed=1`.
    """
    found = find_runs(run, folder)
    if len(found) > 1:
        names = stored_names(found[0].path.parent)
        variants = {each.id: names[each.id].variant if each.id in names else each.id for each in found}
        found = [each for each in found if variants[each.id] in (str(run), Path(run).name)] or found
        if len({variants[each.id] for each in found}) > 1:
            raise _ambiguous(run, found)
    return found


def _ambiguous(run: str | Path, found: Sequence[StoredRun]) -> FavoritError:
    """The error for a text with which the identifiers or names of several runs start."""
    place = found[0].path.parent
    names = stored_names(place)
    listed = [f"{each.id} ({names[each.id].name})" if each.id in names else each.id for each in found[:CANDIDATES]]
    more = f" and {len(found) - CANDIDATES} more" if len(found) > CANDIDATES else ""
    return FavoritError(
        f"{run} is the start of {len(found)} runs in {place}: {', '.join(listed)}{more}: write more characters"
    )


def stored_names(folder: str | Path) -> dict[str, RunName]:
    """The names of the runs of a folder by identifier, without runs whose configuration is damaged."""
    indexed, found = indexed_names(folder), dict[str, RunName]()
    for run in stored_runs(folder):
        with suppress(FavoritError):
            found[run.id] = name_of(run.id, run.config(), indexed)
    return found


def find_run(identifier: str, out: str | Path, *packs: str | Path) -> StoredRun:
    """The run with this identifier in `out`, or packed in one of the folders `packs`.

    If it does not exist yet, this is the folder in `out` where training will store it.
    """
    return _either(
        RunFolder(f"{out}{os.sep}{identifier}"), [f"{place}{os.sep}{identifier}{SUFFIX}" for place in (out, *packs)]
    )


def check_no_run(folder: str | Path) -> None:
    """Raises an error if the folder is a run, not a folder of runs."""
    if os.path.exists(f"{folder}{os.sep}config.json"):
        raise FavoritError(f"{folder} is a run, not a folder of runs: give the folder that it is in")


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
