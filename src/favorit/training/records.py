"""The runs of a folder as a table. The files are the database; nothing else holds state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.config import SECTIONS
from favorit.errors import FavoritError
from favorit.training.find import stored_runs
from favorit.training.stored import StoredRun, has_ended

if TYPE_CHECKING:
    import pandas


def runs(folder: str | Path = "runs") -> pandas.DataFrame:
    """One row for each run, full or packed: identifier, status, fields of its configuration, numbers of its result, its
    environment.

    `status` is complete, failed, pruned, training (some process holds the run) or stopped (none does; rerun to resume).
    """
    import pandas

    return pandas.DataFrame(rows(folder))


def rows(folder: str | Path) -> list[dict[str, Any]]:
    """The same as dictionaries, which need no pandas."""
    return [_row(run) for run in stored_runs(folder)]


def status(run: StoredRun, result: dict[str, Any] | None) -> str:
    """What state a run is in, given what its result.json holds."""
    if has_ended(result):
        return str(result["status"])
    if run.held():
        return "training"
    return "stopped" if result is None else "pruned"


def had_machine_alone(environment: Mapping[str, Any] | None) -> bool:
    """True if times of a run count: no other worker beside it, and usual priority. Older results do not record the
    priority.
    """
    known = environment or {}
    return known.get("workers", 1) == 1 and known.get("nice", 0) == 0


def _row(run: StoredRun) -> dict[str, Any]:
    try:
        saved, result = run.config(), run.result()
        config = saved["config"]
        if missing := [section for section in SECTIONS if not isinstance(config.get(section), dict)]:
            raise FavoritError(f"{run.path / 'config.json'} is damaged (no {', '.join(missing)})")
        if result is not None:
            run.check_epochs()
        epochs = [] if result is not None else run.epochs()
    except FavoritError as error:
        return {"id": run.id, "status": "damaged", "error": str(error)}
    found: dict[str, Any] = {"id": run.id, "status": status(run, result), "layers": saved.get("layers")}
    found |= {key: config.get(key) for key in ("seed", "scale")}
    for section in SECTIONS:
        for key, value in config[section].items():
            found[f"{section}.{key}"] = value
    if result is None:
        return {**found, "epochs": len(epochs), "error": run.error()}
    numbers = {key: value for key, value in result.items() if isinstance(value, int | float) and key != "schema"}
    tested = {f"test.{key}": value for key, value in result.get("test", {}).items() if isinstance(value, float)}
    nested = ("validation", "plain_test", "best_test", "best_validation_loss")
    evaluated = {f"{part}.{key}": value for part in nested for key, value in (result.get(part) or {}).items()}
    # Times are compared only between runs of one environment that had the machine to themselves.
    found["had_machine_alone"] = had_machine_alone(result.get("environment"))
    environment = {f"environment.{key}": value for key, value in (result.get("environment") or {}).items()}
    batches = dict(
        zip(("batch_seconds", "batch_seconds_deviation"), result.get("inference_seconds_per_batch", ()), strict=False)
    )
    flags = " ".join(result.get("flags", []))
    return {
        **found,
        **numbers,
        **batches,
        **tested,
        **evaluated,
        **environment,
        "flags": flags,
        "error": result.get("error"),
    }
