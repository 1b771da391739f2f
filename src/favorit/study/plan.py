"""Plans a study: resolves, names and checks every point before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from favorit.config import RunConfig
from favorit.errors import FavoritError
from favorit.files import read_json, write_json
from favorit.study.study import Options, Point, Study
from favorit.study.tasks import Task
from favorit.training.find import stored_runs
from favorit.training.names import INDEXES

if TYPE_CHECKING:
    from favorit.data import DataSet

INDEX = 1  # schema of the index file
_INDEX = TypeAdapter(list[tuple[str, str, str] | tuple[str, str, str, tuple[str, ...]]])


@dataclass(frozen=True)
class Plan:
    """The tasks of a study, the number of (training, test) images of each data set, and notes about the data sets.

    `absent` has the reason for each point whose data set is missing. The task of such a point may have no identifier.
    """

    study: Study
    options: Options
    tasks: tuple[Task, ...]
    absent: Mapping[str, str]
    images: Mapping[str, tuple[int, int]]
    notes: tuple[str, ...] = ()

    @property
    def ready(self) -> list[Task]:
        """The tasks whose data sets are available."""
        return [task for task in self.tasks if task.name not in self.absent]


@dataclass(frozen=True)
class Entry:
    """The run of a point. `id` is empty if it cannot be computed because the data set is missing. `merged` has the
    groups of the other points that are the same run.
    """

    name: str
    group: str
    id: str
    merged: tuple[str, ...] = ()


def make_plan(
    study: Study,
    options: Options,
    *,
    data_dir: str | Path | None = None,
    fetch: bool = False,
    digests: Callable[[], Mapping[str, str]] = dict,
) -> Plan:
    """Checks all points and computes their run identifiers. Loads one data set at a time and keeps none.

    With `fetch`, missing data sets are downloaded, as in training. Without `fetch`, points of a missing data set are
    checked as far as possible. They have an identifier only if `digests` returns the digest of the data set.

    Points that are the same run become one task, with the name of the first point.
    """
    from favorit.data import read_spec

    points: dict[str, list[tuple[Point, RunConfig]]] = {}
    order = []
    for point in study.named(options):
        config = study.config(point, options)
        try:
            points.setdefault(read_spec(config.data), []).append((point, config))
        except FavoritError as error:
            raise FavoritError(f"study {study.name}, point {point.name!r}: {error}") from None
        order.append(point.name)
    tasks: dict[str, Task] = {}
    runs: dict[str, tuple[str, str]] = {}  # point -> (data set, run id)
    absent: dict[str, str] = {}
    images: dict[str, tuple[int, int]] = {}
    notes: list[str] = []
    for name, own in points.items():
        try:
            data, why = _data(name, data_dir, fetch)
        except FavoritError as error:
            raise FavoritError(f"study {study.name}, point {own[0][0].name!r}: {error}") from None
        images[own[0][1].data.name] = (len(data.train), len(data.test)) if why is None else _published_size(name)
        notes += [f"{data.name}: {note}" for note in data.notes]
        digest = digests().get(name, "") if why is not None else data.digest
        for task in _resolved(study, own, replace(data, digest=digest)):
            tasks[task.name] = task if digest else replace(task, id="")
            runs[task.name] = (digest or name, task.id)
            if why is not None:
                absent[task.name] = why
    kept = _merge([tasks[name] for name in order], runs)
    missing = {task.name: absent[task.name] for task in kept if task.name in absent}
    return Plan(study, options, tuple(kept), missing, images, tuple(notes))


def _merge(tasks: Iterable[Task], runs: Mapping[str, Any]) -> list[Task]:
    """The tasks, each run once: the first task of a run is kept. `runs` has the run of each task by name.

    Groups that share a run are one group with the name of the first, because they differ only in seed or fold.
    """
    first: dict[Any, Task] = {}
    merged_into: dict[str, str] = {}

    def group(name: str) -> str:
        while name in merged_into:
            name = merged_into[name]
        return name

    for task in tasks:
        kept = first.setdefault(runs[task.name], task)
        if group(task.group) != group(kept.group):
            merged_into[group(task.group)] = group(kept.group)
    others: dict[str, list[str]] = {}
    for name in merged_into:
        others.setdefault(group(name), []).append(name)
    return [
        replace(task, group=group(task.group), merged=tuple(others.get(group(task.group), ())))
        for task in first.values()
    ]


def merge_notes(points: Iterable[Any]) -> list[str]:
    """One sentence for each group of points (tasks, entries or states) that stands for others too."""
    merged = {point.group: point.merged for point in points if point.merged}
    return [f"{group} is the same run as {', '.join(others)}: trained once" for group, others in merged.items()]


def _data(name: str, data_dir: str | Path | None, fetch: bool) -> tuple[DataSet, str | None]:
    """(data set, None), or (description of the data set, reason) if its files are missing."""
    from favorit.data import data_directory, load_dataset, present
    from favorit.data.datasets import describe_dataset
    from favorit.data.sources import SOURCES

    if name in SOURCES and not fetch and not present(name, data_dir):
        reason = f"{name} is not in {data_directory(data_dir)}: run 'favorit data fetch {name}'"
        return describe_dataset(name), reason
    try:
        return load_dataset(name, data_dir), None
    except FavoritError as error:
        if name not in SOURCES:
            raise
        return describe_dataset(name), str(error)


def _published_size(name: str) -> tuple[int, int]:
    """(training, test) images from the card of a data set, such as `60k + 10k`."""
    from favorit.data import CARDS

    train, test = (int(part.strip().replace("k", "000").replace(",", "")) for part in CARDS[name].images.split("+"))
    return train, test


def _resolved(study: Study, points: list[tuple[Point, RunConfig]], data: DataSet) -> list[Task]:
    from favorit.training.identity import resolve, run_id

    tasks: list[Task] = []
    checked: set[Any] = set()
    for point, written in points:
        try:
            config = resolve(written, data)
            _check(config, data, checked)
            task = Task(point.name, config, run_id(config, data.digest), point.group, study=study.name)
        except FavoritError as error:
            raise FavoritError(f"study {study.name}, point {point.name!r}: {error}") from None
        tasks.append(task)
    return tasks


def _check(config: RunConfig, data: DataSet, checked: set[Any]) -> None:
    """Raises the errors that training would raise. Skips models and data that are in `checked`, and adds new ones."""
    from favorit.model.outline import outline
    from favorit.training.loaders import build_loaders
    from favorit.training.optim import learning_rate_factor

    if config.model not in checked:
        outline(config.model)
    learning_rate_factor(config.train, 0, 1)
    parts = (config.data, config.seed, config.train.batch_size, config.train.drop_last)
    if parts not in checked and len(data.train):
        build_loaders(config, data, 0, 1)
    checked.update((config.model, parts))


def index_path(study: Study, options: Options, out: str | Path) -> Path:
    """The file that stores a study's run identifiers, which are computed from the data. It can be deleted safely."""
    return Path(out) / INDEXES / study.name / f"{study.digest(options)}.json"


def _row(task: Task) -> list[Any]:
    """The values of the `Entry` of a task."""
    return [task.name, task.group, task.id, task.merged]


def write_index(plan: Plan, out: str | Path) -> None:
    """Stores the run identifiers of a plan. Writes nothing if a data set is missing."""
    if plan.absent:
        return
    path = index_path(plan.study, plan.options, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"schema": INDEX, "points": [_row(task) for task in plan.tasks]})


def stored_digests(*folders: str | Path | None) -> dict[str, str]:
    """The digest of each data set that runs in these folders used. Run identifiers need the digest, not the data."""
    found: dict[str, str] = {}
    for run in (run for folder in folders if folder is not None for run in stored_runs(folder)):
        with suppress(FavoritError):  # a damaged run is reported where it is read
            saved = run.config()
            found.setdefault(RunConfig(**saved["config"]).data.name, saved["data"]["digest"])
    return found


def entries(
    study: Study, options: Options, out: str | Path, data_dir: str | Path | None = None, pack: str | Path | None = None
) -> list[Entry]:
    """The runs of a study. Reads its index if it exists, which needs neither torch nor data; otherwise plans it."""
    try:
        index = read_json(str(index_path(study, options, out)))
        return [Entry(*row) for row in _INDEX.validate_python(index.get("points"))]
    except (OSError, FavoritError, ValidationError):  # missing or damaged: planned again
        plan = make_plan(study, options, data_dir=data_dir, digests=lambda: stored_digests(out, pack))
        if os.path.isdir(out):
            write_index(plan, out)
        return [Entry(*_row(task)) for task in plan.tasks]
