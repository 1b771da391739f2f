"""The runs of a folder as a table. The files are the database; nothing else holds state."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.errors import FavoritError
from favorit.training.folder import RunFolder

if TYPE_CHECKING:
    import pandas


def runs(folder: str | Path = "runs") -> pandas.DataFrame:
    """One row for each run: identifier, status, every field of its configuration, and the numbers of its result.

    `status` is complete, failed, pruned, training (some process holds the run) or stopped (none does; the same command goes on).
    """
    import pandas

    rows = [_row(path.parent) for path in sorted(Path(folder).glob("*/config.json"))]
    return pandas.DataFrame(rows)


def _row(path: Path) -> dict[str, Any]:
    run = RunFolder(path)
    try:
        saved, result, epochs = run.config(), run.result(), run.epochs()
        config = saved["config"]
        if missing := [section for section in ("model", "data", "train") if not isinstance(config.get(section), dict)]:
            raise FavoritError(f"{path / 'config.json'} is damaged (no {', '.join(missing)})")
    except FavoritError as error:
        return {"id": path.name, "status": "damaged", "error": str(error)}
    fields = {f"{section}.{key}": value for section in ("model", "data", "train") for key, value in config[section].items()}
    found: dict[str, Any] = {
        "id": path.name,
        "status": _status(path, result),
        "seed": config.get("seed"),
        "layers": saved.get("layers"),
        **fields,
    }
    if result is None:
        return {**found, "epochs": len(epochs)}
    numbers = {key: value for key, value in result.items() if isinstance(value, int | float) and key != "schema"}
    tested = {f"test.{key}": value for key, value in result.get("test", {}).items() if isinstance(value, float)}
    validated = {f"validation.{key}": value for key, value in (result.get("validation") or {}).items()}
    flags = " ".join(result.get("flags", []))
    return {**found, **numbers, **tested, **validated, "flags": flags, "error": result.get("error")}


def _status(path: Path, result: dict[str, Any] | None) -> str:
    if result is not None and result["status"] != "pruned":
        return str(result["status"])
    idle = "stopped" if result is None else "pruned"
    try:
        with open(path / "lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return idle
    except OSError:
        return "training"
    return idle
