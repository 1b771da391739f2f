"""Packs each finished run into one file of a few kilobytes, which can be read like the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from favorit.errors import FavoritError, check_path
from favorit.files import write_atomically
from favorit.training.find import check_no_run, open_run, stored_runs
from favorit.training.packed import SUFFIX, PackedRun, packed_bytes
from favorit.training.records import status
from favorit.training.stored import StoredRun, has_ended

if TYPE_CHECKING:
    from favorit.training import Run


@dataclass(frozen=True)
class Packed:
    """The outcome for one run: packed, present (was packed before), unfinished, or broken (damaged, or a different
    training of the run is already packed).
    """

    id: str
    outcome: Literal["packed", "present", "unfinished", "broken"]
    note: str


def pack(run: Run | str | Path, to: str | Path) -> Run:
    """Packs a complete or failed run into `to`/<id>.zip and returns the packed run.

    An existing file of the same training is kept, a damaged file is replaced, and a different training is an error.
    """
    from favorit.training import Run

    stored = open_run(run.path if isinstance(run, Run) else run)
    found = pack_stored(stored, create_pack_folder(to))
    if found.outcome in ("unfinished", "broken"):
        raise FavoritError(found.note)
    return Run(Path(to) / f"{stored.id}{SUFFIX}")


def pack_all(folder: str | Path, to: str | Path) -> Iterator[Packed]:
    """Packs the runs of a folder one by one. A run that cannot be packed does not stop the others."""
    check_no_run(folder)
    to = create_pack_folder(to)
    for run in stored_runs(folder):
        yield pack_stored(run, to)


def create_pack_folder(to: str | Path) -> Path:
    """The folder for packed runs; creates it."""
    check_path("the folder for packed runs", to)
    to = Path(to)
    if to.exists() and not to.is_dir():
        raise FavoritError(f"{to} is a file: give a folder for packed runs (it is created if it does not exist)")
    to.mkdir(parents=True, exist_ok=True)
    return to


def pack_stored(run: StoredRun, to: Path) -> Packed:
    """Packs a run into the folder `to`. A packed run of a different training is kept: it may be the only copy of its
    result.
    """
    path = to / f"{run.id}{SUFFIX}"
    try:
        result = run.result()
        if not has_ended(result):
            run.config()  # raises an error if the folder is not a run
            return Packed(
                run.id, "unfinished", f"{run.path} is {status(run, result)}: only complete and failed runs are packed"
            )
        before = _readable(path)
        if before is not None:
            if (before.config(), before.result()) == (run.config(), result):
                return Packed(run.id, "present", str(path))
            return Packed(
                run.id,
                "broken",
                f"{path} already holds another result of the run {run.id}: delete that file to pack {run.path}",
            )
        content = packed_bytes(run)
    except FavoritError as error:
        return Packed(run.id, "broken", str(error))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return Packed(run.id, "packed", f"{path} ({len(content) / 1000:.1f} kB)")


def _readable(path: Path) -> PackedRun | None:
    """The packed run at `path`; None if it is missing or damaged."""
    packed = PackedRun(path)
    try:
        if packed.exists() and (packed.result() or {})["status"] == "complete":
            packed.predictions()
    except FavoritError:
        return None
    return packed if packed.exists() else None
