"""The runs of a folder as a table. The files are the database; nothing else holds state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.config import SECTIONS
from favorit.errors import FavoritError
from favorit.training.folder import RunFolder

if TYPE_CHECKING:
    import pandas


def runs(folder: str | Path = "runs") -> pandas.DataFrame:
    """One row for each run: identifier, status, every field of its configuration, the numbers of its result, and its environment.

    `status` is complete, failed, pruned, training (some process holds the run) or stopped (none does; the same command goes on).
    """
    import pandas

    return pandas.DataFrame(rows(folder))


def rows(folder: str | Path) -> list[dict[str, Any]]:
    """The same as dictionaries, which need no pandas."""
    if os.path.isfile(folder):
        raise FavoritError(f"{folder} is a file: runs are in a folder")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [_row(Path(folder, name)) for name in names if os.path.exists(f"{folder}{os.sep}{name}{os.sep}config.json")]


def status(run: RunFolder, result: dict[str, Any] | None) -> str:
    """What state a run is in, given what its result.json holds."""
    if result is not None and result["status"] != "pruned":
        return str(result["status"])
    if run.held():
        return "training"
    return "stopped" if result is None else "pruned"


def _row(path: Path) -> dict[str, Any]:
    run = RunFolder(path)
    try:
        saved, result = run.config(), run.result()
        config = saved["config"]
        if missing := [section for section in SECTIONS if not isinstance(config.get(section), dict)]:
            raise FavoritError(f"{path / 'config.json'} is damaged (no {', '.join(missing)})")
        if result is not None:
            run.check_epochs()
        epochs = [] if result is not None else run.epochs()
    except FavoritError as error:
        return {"id": path.name, "status": "damaged", "error": str(error)}
    found: dict[str, Any] = {"id": path.name, "status": status(run, result), "seed": config.get("seed"), "layers": saved.get("layers")}
    for section in SECTIONS:
        for key, value in config[section].items():
            found[f"{section}.{key}"] = value
    if result is None:
        return {**found, "epochs": len(epochs), "error": run.error()}
    numbers = {key: value for key, value in result.items() if isinstance(value, int | float) and key != "schema"}
    tested = {f"test.{key}": value for key, value in result.get("test", {}).items() if isinstance(value, float)}
    validated = {f"validation.{key}": value for key, value in (result.get("validation") or {}).items()}
    # Times are compared only between runs of one environment that had the machine to themselves.
    environment = {f"environment.{key}": value for key, value in (result.get("environment") or {}).items()}
    batches = dict(zip(("batch_seconds", "batch_seconds_deviation"), result.get("inference_seconds_per_batch", ()), strict=False))
    flags = " ".join(result.get("flags", []))
    return {**found, **numbers, **batches, **tested, **validated, **environment, "flags": flags, "error": result.get("error")}
