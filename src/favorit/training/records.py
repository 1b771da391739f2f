"""The runs of a folder as a table. The files are the database; no state is kept elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.config import SECTIONS
from favorit.errors import FavoritError, check_path
from favorit.fields import flatten
from favorit.training.find import check_no_run, stored_runs
from favorit.training.names import RunName, indexed_names, name_of
from favorit.training.saved import is_edited
from favorit.training.stored import StoredRun, has_ended

if TYPE_CHECKING:
    import pandas


def runs(folder: str | Path = "runs") -> pandas.DataFrame:
    """One row for each run, folder or packed: identifier, status, study, name, date, configuration, result and
    environment.

    `date` is when training started, in UTC; packed runs of older versions have none. `status` is complete, failed,
    pruned, training (a process holds the run), stopped (none does; rerun to resume) or damaged (see `error`).

    Example:
        favorit.runs("runs")[["id", "layers", "test.accuracy"]]
    """
    import pandas

    return pandas.DataFrame(rows(folder))


def rows(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of `runs` as dictionaries, without pandas."""
    check_path("folder", folder)
    if not os.path.exists(folder):
        raise FavoritError(
            f"{folder} does not exist: give a folder of runs (favorit.train and `favorit train` make one)"
        )
    check_no_run(folder)
    indexed = indexed_names(folder)
    return [_row(run, indexed) for run in stored_runs(folder)]


def status(run: StoredRun, result: dict[str, Any] | None) -> str:
    """The status of a run, given the content of its result.json."""
    if has_ended(result):
        return str(result["status"])
    if run.held():
        return "training"
    return "stopped" if result is None else "pruned"


def had_machine_alone(environment: Mapping[str, Any] | None) -> bool:
    """True if the times of a run are comparable: no other worker on the machine, and default priority.

    Older results do not record the priority; they count as default.
    """
    recorded = environment or {}
    return recorded.get("workers", 1) == 1 and recorded.get("nice", 0) == 0


def _row(run: StoredRun, indexed: Mapping[str, RunName]) -> dict[str, Any]:
    try:
        saved, result = run.config(), run.result()
        config = saved["config"]
        if result is not None:
            run.check_epochs()
        epochs = [] if result is not None else run.epochs()
    except FavoritError as error:
        return {"id": run.id, "status": "damaged", "error": str(error)}
    name = name_of(run.id, saved, indexed)
    found: dict[str, Any] = {"id": run.id, "status": status(run, result), "study": name.study or None}
    found |= {"name": name.name, "date": saved.get("started") or run.date(), "layers": saved.get("layers")}
    found |= {key: config.get(key) for key in ("seed", "scale")}
    found |= flatten({section: config[section] for section in SECTIONS})
    edited = ["edited"] if is_edited(saved) else []
    if result is None:
        return {**found, "epochs": len(epochs), "flags": " ".join(edited), "error": run.error()}
    scalars = {
        key: value
        for key, value in result.items()
        if isinstance(value, int | float) and key != "schema" and key not in found
    }
    tested = {f"test.{key}": value for key, value in result.get("test", {}).items() if isinstance(value, float)}
    nested = ("validation", "plain_test", "best_test", "best_validation_loss")
    evaluated = {f"{part}.{key}": value for part in nested for key, value in (result.get(part) or {}).items()}
    # For comparisons of times, which need runs in one environment that did not share the machine.
    found["had_machine_alone"] = had_machine_alone(result.get("environment"))
    environment = {f"environment.{key}": value for key, value in (result.get("environment") or {}).items()}
    batches = dict(
        zip(("batch_seconds", "batch_seconds_deviation"), result.get("inference_seconds_per_batch", ()), strict=False)
    )
    return {
        **found,
        **scalars,
        **batches,
        **tested,
        **evaluated,
        **environment,
        "flags": " ".join([*result.get("flags", []), *edited]),
        "error": result.get("error"),
    }
