"""The results queue: a YAML list of studies, most informative first, whose missing runs are trained one after the
other.

    - {study: hybrids, scale: small, seeds: [0, 1, 2], only: ["layout=all_standard", "*m=128*"]}
    - {study: kernels, scale: small}

A run that several entries name is trained once. An entry that cannot be used is reported in one line and left out.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import BeforeValidator

from favorit.config import Config, RunConfig
from favorit.errors import FavoritError
from favorit.spec import NonNegativeInt
from favorit.study.estimate import shape, trained_images
from favorit.study.load import load_study
from favorit.study.plan import make_plan, stored_digests
from favorit.study.runner import Report, begin, choose, survey
from favorit.study.source import Source
from favorit.study.study import FULL, Options
from favorit.study.tasks import Broke, Ended, Task, TaskEvent


def _several(value: Any) -> Any:
    """One value stands for a list of one."""
    return [value] if isinstance(value, str | int) else value


class QueueEntry(Config):
    """One study of the queue: at which scale and protocol, with which seeds, and which of its points (patterns as in
    --only).
    """

    study: str
    scale: str = FULL
    protocol: str = "published"
    seeds: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_several)] = ()
    only: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()

    @property
    def options(self) -> Options:
        return Options(self.protocol, seeds=self.seeds, only=self.only, scale=self.scale)

    @property
    def title(self) -> str:
        parts = [self.study, self.scale, *([self.protocol] if self.protocol != "published" else [])]
        return " ".join(parts)


@dataclass
class Part:
    """An entry with how its runs stand."""

    entry: QueueEntry
    report: Report


@dataclass
class Queue:
    """The usable entries in order, and one line for each of the others."""

    parts: list[Part] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def missing(self) -> list[tuple[Part, Task]]:
        """What is left to do, each run once, with the first entry that names it."""
        found: dict[str, tuple[Part, Task]] = {}
        for part in self.parts:
            for task in part.report.missing.values():
                found.setdefault(task.id, (part, task))
        return list(found.values())

    def ids(self) -> set[str]:
        return {task.id for part in self.parts for task in part.report.plan.tasks if task.id}

    def failures(self) -> dict[str, str]:
        """One line for each run that failed or is damaged, by its identifier, with the first entry that names it."""
        found: dict[str, str] = {}
        for part in self.parts:
            for task in part.report.plan.ready:
                if task.name in part.report.errors:
                    found.setdefault(task.id, f"{part.entry.title}: {task.name}: {part.report.errors[task.name]}")
        return found

    def unpacked(self) -> list[str]:
        """One line for each finished run that could not be packed."""
        return list(
            dict.fromkeys(f"not packed: {reason}" for part in self.parts for reason in part.report.unpacked.values())
        )

    def hear(self, event: TaskEvent) -> None:
        """Passes what a backend says to all entries that name the run."""
        for part in self.parts:
            for task in [task for task in part.report.missing.values() if task.id == event.task.id]:
                part.report.hear(_about(event, task))

    def seconds_left(self, workers: int) -> float | None:
        """How long the rest takes, from the runs that are done; None while none is.

        A run takes as long for each image as the mean of the done runs with the same model and batch; else of its
        study; else of all.
        """
        done = [
            (part.report.plan.study.name, task.config, _pace(part.report, task))
            for part in self.parts
            for task in part.report.plan.tasks
            if task.name in part.report.results
        ]
        by_shape = _means((shape(config), pace) for _, config, pace in done)
        by_study = _means((name, pace) for name, _, pace in done)
        overall = _means(("", pace) for _, _, pace in done)
        if not overall:
            return None
        total = 0.0
        for part, task in self.missing():
            usual = by_study.get(part.report.plan.study.name, overall[""])
            total += by_shape.get(shape(task.config), usual) * _images(part.report, task.config)
        return total / workers


def read_queue(path: str | Path) -> tuple[list[QueueEntry], list[str]]:
    """The entries of a queue file, and one line for each that is not one."""
    import yaml

    try:
        rows = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise FavoritError(f"queue {path}: {(error.strerror or str(error)).lower()}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FavoritError(f"queue {path} is not YAML: {' '.join(str(error).split())}") from None
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
    is_only_read: bool = False,
) -> Queue:
    """The queue with how each of its runs stands in `out`, and in `pack` as a packed run. Absent data are fetched
    unless only reading.
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
                fetch=not is_only_read,
                digests=partial(stored_digests, out, pack),
            )
        except FavoritError as error:
            queue.problems.append(f"queue {path}, {entry.title}: {error}")
            continue
        report = (survey if is_only_read else begin)(plan, out, pack)
        reasons = dict.fromkeys(reason for name, reason in plan.absent.items() if name in report.errors)
        queue.problems += [f"queue {path}, {entry.title}: {reason}" for reason in reasons]
        queue.parts.append(Part(entry, report))
    return queue


def run_queue(
    queue: Queue, *, workers: int = 1, data_dir: str | Path | None = None
) -> Iterator[tuple[Part, TaskEvent]]:
    """Trains what is missing, in order, and passes on what the backend says with the entry that it is about."""
    backend = choose(workers=workers)
    for source, group in groupby(queue.missing(), key=_source):
        about = {task.id: (part, task) for part, task in group}
        out = next(iter(about.values()))[0].report.out
        with closing(backend([task for _, task in about.values()], out, source=source, data_dir=data_dir)) as said:
            for event in said:
                queue.hear(event)
                yield about[event.task.id][0], event


@contextmanager
def held_queue(*folders: str | Path | None) -> Iterator[None]:
    """Holds the folders of a queue: another one would train the same runs. Released by the system when the process
    ends.
    """
    with ExitStack() as stack:
        for folder in dict.fromkeys(Path(each).resolve() for each in folders if each is not None):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(folder / ".queue.lock", "a+"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FavoritError(f"another queue works in {folder}: wait for it, or stop it") from None
        yield


def _study_file(study: str, queue: str | Path) -> str:
    """A study file is looked for beside the queue first."""
    beside = Path(queue).parent / study
    return str(beside) if study.endswith(".py") and beside.is_file() else study


def _source(item: tuple[Part, Task]) -> Source | None:
    return item[0].report.plan.study.source


def _about(event: TaskEvent, task: Task) -> TaskEvent:
    """The same event under the name that another entry has for the run."""
    if isinstance(event, Ended):
        return Ended(task, event.result, event.elsewhere)
    if isinstance(event, Broke):
        return Broke(task, event.error, event.later)
    return event


def _images(report: Report, config: RunConfig) -> int:
    """How many training images a run sees in all its epochs."""
    return config.train.epochs * trained_images(config, report.plan.images[config.data.name][0])


def _pace(report: Report, task: Task) -> float:
    """Seconds of a finished run for each training image, evaluation included; early stopping makes fewer epochs."""
    result: Mapping[str, Any] = report.results[task.name]
    images = result["epochs"] * trained_images(task.config, report.plan.images[task.config.data.name][0])
    return (result.get("total_seconds", 0.0) + result["inference_seconds"]) / images


def _means(pairs: Iterator[tuple[Any, float]] | Sequence[tuple[Any, float]]) -> dict[Any, float]:
    grouped: dict[Any, list[float]] = {}
    for key, value in pairs:
        grouped.setdefault(key, []).append(value)
    return {key: fmean(values) for key, values in grouped.items()}
