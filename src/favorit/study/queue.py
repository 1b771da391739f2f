"""The results queue: a YAML list of studies. Their missing runs are trained in the order of the list.

    - {study: hybrids, scale: small, seeds: [0, 1, 2], only: ["layout=all_standard", "*m=128*"]}
    - {study: kernels, scale: small}

A run that several entries contain is trained once. An invalid entry is reported in one line and skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from favorit.config import Config, RunConfig
from favorit.errors import FavoritError
from favorit.files import read_yaml
from favorit.locks import try_hold
from favorit.spec import NonNegativeInt
from favorit.study.estimate import trained_images
from favorit.study.load import load_study
from favorit.study.plan import make_plan, stored_digests
from favorit.study.runner import Report, choose_backend, prepare, survey, train_tasks
from favorit.study.study import FULL, Options
from favorit.study.tasks import Ended, Task, TaskEvent
from favorit.study.timings import shape


def _as_list(value: Any) -> Any:
    """A single value as a list of one."""
    return [value] if isinstance(value, str | int) else value


class QueueEntry(Config):
    """One study of the queue with its scale, protocol, seeds and points (`only`: patterns as in --only)."""

    study: str
    scale: str = FULL
    protocol: str = "published"
    seeds: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_as_list)] = ()
    only: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()

    @property
    def options(self) -> Options:
        return Options(self.protocol, seeds=self.seeds, only=self.only, scale=self.scale)

    @property
    def title(self) -> str:
        parts = [self.study, self.scale, *([self.protocol] if self.protocol != "published" else [])]
        return " ".join(parts)


@dataclass
class PlannedEntry:
    """An entry with the status of its runs."""

    entry: QueueEntry
    report: Report


class RunCounts(NamedTuple):
    """The runs of a queue by status."""

    done: int
    failed: int
    missing: int
    without_data: int


@dataclass
class Queue:
    """The valid entries in order, and one line for each invalid one."""

    entries: list[PlannedEntry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def missing(self) -> list[tuple[PlannedEntry, Task]]:
        """The tasks to train, each once, with the first entry that contains it."""
        found: dict[str, tuple[PlannedEntry, Task]] = {}
        for planned in self.entries:
            for task in planned.report.missing.values():
                found.setdefault(task.id, (planned, task))
        return list(found.values())

    def counts(self) -> RunCounts:
        """The number of runs by status.

        A run in several entries counts once, by its ID, or by its name if the missing data set leaves it without an ID.
        """
        done, blocked = set(), set()
        for planned in self.entries:
            plan, results = planned.report.plan, planned.report.results
            done |= {task.id for task in plan.tasks if task.name in results}
            absent = [task for task in plan.tasks if task.name in plan.absent and task.name not in results]
            blocked |= {task.id or f"{plan.study.name}: {task.name}" for task in absent}
        return RunCounts(len(done), len(self.failures()), len(self.missing()), len(blocked))

    def failures(self) -> dict[str, str]:
        """One line for each failed or damaged run, by run identifier. It names the first entry that has the run."""
        found: dict[str, str] = {}
        for planned in self.entries:
            for task in planned.report.plan.ready:
                if task.name in planned.report.errors:
                    line = f"{planned.entry.title}: {task.name}: {planned.report.errors[task.name]}"
                    found.setdefault(task.id, line)
        return found

    def unpacked(self) -> list[str]:
        """One line for each finished run that could not be packed."""
        reasons = (reason for planned in self.entries for reason in planned.report.unpacked.values())
        return list(dict.fromkeys(f"not packed: {reason}" for reason in reasons))

    def update(self, event: TaskEvent) -> None:
        """Passes an event to all entries that contain the run, each with its own task."""
        for planned in self.entries:
            for task in [task for task in planned.report.missing.values() if task.id == event.task.id]:
                planned.report.update(replace(event, task=task))

    def seconds_left(self, workers: int) -> float | None:
        """Estimated seconds for the missing runs, from the time per image of complete runs. None without complete runs.

        The time per image is the mean over complete runs of the same `shape`, otherwise over those of the same study,
        otherwise over all.
        """
        done = [
            (planned.report.plan.study.name, task.config, _seconds_per_image(planned.report, task))
            for planned in self.entries
            for task in planned.report.plan.tasks
            if task.name in planned.report.results
        ]
        by_shape = _means((shape(config), seconds) for _, config, seconds in done)
        by_study = _means((name, seconds) for name, _, seconds in done)
        overall = _means(("", seconds) for _, _, seconds in done)
        if not overall:
            return None
        total = 0.0
        for planned, task in self.missing():
            default = by_study.get(planned.report.plan.study.name, overall[""])
            total += by_shape.get(shape(task.config), default) * _images(planned.report, task.config)
        return total / workers


def read_queue(path: str | Path) -> tuple[list[QueueEntry], list[str]]:
    """The entries of a queue file, and one line for each invalid one."""
    rows = read_yaml(path, f"queue {path}")
    if not isinstance(rows, list):
        raise FavoritError(
            f"queue {path} must be a list of entries such as {{study: hybrids, scale: small, seeds: [0, 1, 2]}}"
        )
    entries, problems = [], []
    for number, row in enumerate(rows, 1):
        try:
            if not isinstance(row, dict):
                raise FavoritError(f"{row!r} is not an entry such as {{study: hybrids, scale: small}}")
            entries.append(QueueEntry(**{str(key): value for key, value in row.items()}))
        except FavoritError as error:
            problems.append(f"queue {path}, entry {number}: {error}")
    return entries, problems


def plan_queue(
    path: str | Path,
    out: str | Path,
    *,
    pack: str | Path | None = None,
    data_dir: str | Path | None = None,
    read_only: bool = False,
) -> Queue:
    """The queue with the status of each run, from the runs in `out` and the packed runs in `pack`. Unless `read_only`,
    downloads missing data sets and creates the folders.
    """
    entries, problems = read_queue(path)
    queue = Queue(problems=problems)
    for entry in entries:
        try:
            study = load_study(_study_file(entry.study, path))
            plan = make_plan(
                study,
                entry.options,
                data_dir=data_dir,
                fetch=not read_only,
                digests=partial(stored_digests, out, pack),
            )
        except FavoritError as error:
            queue.problems.append(f"queue {path}, {entry.title}: {error}")
            continue
        report = (survey if read_only else prepare)(plan, out, pack)
        reasons = dict.fromkeys(reason for name, reason in plan.absent.items() if name in report.errors)
        queue.problems += [f"queue {path}, {entry.title}: {reason}" for reason in reasons]
        queue.entries.append(PlannedEntry(entry, report))
    return queue


def run_queue(
    queue: Queue, *, workers: int = 1, data_dir: str | Path | None = None, discard: bool = False
) -> Iterator[tuple[PlannedEntry, TaskEvent]]:
    """Trains the missing runs in order, and yields each event with the first entry that contains its run.

    With `discard`, the folder of each run that this call trained is deleted once the run is packed. Folders of other
    runs are kept, because their weights may be needed.
    """
    backend = choose_backend(workers=workers)
    items = queue.missing()
    if not items:
        return
    entries = {task.id: planned for planned, task in items}
    out = items[0][0].report.out
    for event in train_tasks(backend, [task for _, task in items], queue.update, out, data_dir=data_dir):
        planned = entries[event.task.id]
        yield planned, event
        is_own = isinstance(event, Ended) and not event.elsewhere
        if discard and is_own and planned.report.pack_finished(event.task):
            shutil.rmtree(out / event.task.id, ignore_errors=True)


@contextmanager
def held_queue(*folders: str | Path | None) -> Iterator[None]:
    """Locks the folders of a queue, so that no second queue trains the same runs. The system releases the locks when
    the process ends.
    """
    with ExitStack() as stack:
        for folder in dict.fromkeys(Path(each).resolve() for each in folders if each is not None):
            folder.mkdir(parents=True, exist_ok=True)
            if not stack.enter_context(try_hold(folder / ".queue.lock")):
                raise FavoritError(f"another queue is running in {folder}: wait until it ends, or stop it")
        yield


def _study_file(study: str, queue: str | Path) -> str:
    """The path of a study file in the queue's folder, or `study` unchanged if that folder has no such file."""
    path = Path(queue).parent / study
    return str(path) if study.endswith(".py") and path.is_file() else study


def _images(report: Report, config: RunConfig) -> int:
    """The number of training images of a run, summed over its epochs."""
    return config.train.epochs * trained_images(config, report.plan.images[config.data.name][0])


def _seconds_per_image(report: Report, task: Task) -> float:
    """Seconds of a complete run, evaluation included, per training image of the epochs it ran."""
    result: Mapping[str, Any] = report.results[task.name]
    images = result["epochs"] * trained_images(task.config, report.plan.images[task.config.data.name][0])
    return (result.get("total_seconds", 0.0) + result["inference_seconds"]) / images


def _means(pairs: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    """The mean of the values of each key."""
    grouped: dict[Any, list[float]] = {}
    for key, value in pairs:
        grouped.setdefault(key, []).append(value)
    return {key: fmean(values) for key, values in grouped.items()}
