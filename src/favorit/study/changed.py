"""Finished runs of a study whose components come from files that have changed since."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from favorit.errors import FavoritError
from favorit.study.tasks import Task
from favorit.training.find import find_run

MAX_NAMED = 3  # number of runs that a warning names


def warn_of_changed_files(finished: Iterable[Task], *folders: str | Path) -> None:
    """One warning for each changed file of the user's components. The runs of the tasks are in `folders`."""
    from favorit.training.components import changed_files, own_components

    older: dict[str, list[str]] = {}
    for task in finished:
        if own_components(task.config):
            run = find_run(task.id, *folders)
            with suppress(FavoritError):  # a damaged run is reported where it is read
                for file in changed_files(run.config(), run.path):
                    older.setdefault(file, []).append(str(run.path))
    for file, runs in older.items():
        more = f" and {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else ""
        warnings.warn(
            f"{file} has changed since finished runs were started, which are not trained again: to do so, delete them "
            f"({', '.join(runs[:MAX_NAMED])}{more}), or register another name",
            stacklevel=2,
        )
