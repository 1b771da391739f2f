"""Trains the missing runs of a study, on this machine or on a cluster, and reports the status of each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from favorit.errors import FavoritError, check_path
from favorit.process import check_accelerator
from favorit.study.changed import warn_of_changed_files
from favorit.study.load import load_study
from favorit.study.packing import create_pack_folder, pack_stored
from favorit.study.plan import Entry, Plan, entries, make_plan, merge_notes, write_index
from favorit.study.study import Options, Study
from favorit.study.tasks import Backend, Ended, Task, TaskEvent, Unfinished
from favorit.training.find import find_run
from favorit.training.folder import RunFolder
from favorit.training.records import status as run_status
from favorit.training.stored import has_ended


@dataclass(repr=False)
class Report:
    """The status of a study by the names of its points: results of complete runs, errors of failed runs, missing tasks.

    Finished runs are packed into the folder `pack`, if given. `unpacked` has the reason for each run that could not be
    packed.
    """

    plan: Plan
    out: Path
    pack: Path | None = None
    unpacked: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    missing: dict[str, Task] = field(default_factory=dict)

    def __repr__(self) -> str:
        tasks = self.plan.tasks
        outcomes = {name: f"test {result['test']['accuracy']:.2%}" for name, result in self.results.items()}
        outcomes |= self.errors
        head = f"<Report of {self.plan.study.name}: {len(self.results)} of {len(tasks)} points done"
        failed = f", {len(self.errors)} failed" if self.errors else ""
        return "\n".join(
            [f"{head}{failed}>", *(f"{task.name}   {outcomes.get(task.name, 'missing')}" for task in tasks)]
        )

    def update(self, event: TaskEvent) -> None:
        """Records an event of a backend. Writes the error of a failed run to its folder, and packs finished runs."""
        name = event.task.name
        if isinstance(event, Ended):
            self.results[name] = event.result
            del self.missing[name]
            self.pack_finished(event.task)
        elif isinstance(event, Unfinished) and not event.later:
            self.errors[name] = event.error
            del self.missing[name]
            folder = RunFolder(self.out / event.task.id)
            with suppress(OSError, FavoritError):  # the disk may be full: a common reason for the failure
                if folder.result() is None:
                    folder.write_error(event.error)
            self.pack_finished(event.task)

    def pack_finished(self, task: Task) -> bool:
        """True if the run of a task is packed. Packs it first if it has finished in `out`; a damaged packed file is
        replaced.
        """
        if self.pack is None:
            return False
        folder = RunFolder(self.out / task.id)
        try:
            if not has_ended(folder.result()):
                return False
            packed = pack_stored(folder, self.pack)
        except FavoritError as error:
            self.unpacked[task.name] = str(error)
            return False
        except OSError as error:  # such as a full disk: the run is kept, and the next call packs it
            self.unpacked[task.name] = f"{error.filename}: {error.strerror}"
            return False
        if packed.outcome == "broken":
            self.unpacked[task.name] = packed.note
        return packed.outcome in ("packed", "present")


def run(
    study: Study | str | Path,
    out: str | Path = "runs",
    *,
    pack: str | Path | None = None,
    options: Options | None = None,
    workers: int = 1,
    hours: float | None = None,
    ray: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
    listen: Callable[[TaskEvent], None] | None = None,
) -> Report:
    """Trains the missing runs of a study (its name, its file or a Study) into `out`. Repeat the call to resume an
    interrupted study.

    Each finished run is packed into the folder `pack`, if given. Finished runs in `out` or `pack` are skipped.
    Points that are the same run are trained once, with a warning that names them.

    Runs are trained in `workers` local processes, or on the Ray cluster at the address `ray`, where each run uses
    `cpus` CPUs and `gpus` GPUs. Every process imports the study's file and other files that registered components.
    A script that defines its own STUDY passes its file: `run(__file__)`.
    """
    report, events = start(
        study,
        out,
        pack=pack,
        options=options,
        workers=workers,
        hours=hours,
        ray=ray,
        cpus=cpus,
        gpus=gpus,
        data_dir=data_dir,
        accelerator=accelerator,
    )
    for note in merge_notes(report.plan.tasks):
        warnings.warn(note, stacklevel=2)
    with closing(events):
        for event in events:
            if listen is not None:
                listen(event)
    return report


def start(
    study: Study | str | Path,
    out: str | Path = "runs",
    *,
    pack: str | Path | None = None,
    options: Options | None = None,
    workers: int = 1,
    hours: float | None = None,
    ray: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
) -> tuple[Report, Generator[TaskEvent, None, None]]:
    """Like `run`, but returns the report of the existing runs and a generator that trains the missing runs.

    The generator updates the report before it yields an event. Closing the generator stops the workers.
    """
    check_accelerator(accelerator)
    check_path("out", out)
    if not isinstance(options, Options | None):
        raise FavoritError(f"options={options!r} is not valid: write them as Options(scale='small')")
    if hours is not None and not (isinstance(hours, int | float) and hours >= 0):
        raise FavoritError(f"hours={hours!r} is not valid: a number of at least 0, or None")
    backend = choose_backend(workers=workers, ray=ray, cpus=cpus, gpus=gpus)
    study = study if isinstance(study, Study) else load_study(study)
    report = prepare(make_plan(study, options or Options(), data_dir=data_dir, fetch=True), out, pack)
    events = train_tasks(
        backend,
        list(report.missing.values()),
        report.update,
        report.out,
        hours=hours,
        data_dir=data_dir,
        accelerator=accelerator,
    )
    return report, events


def train_tasks(
    backend: Backend, tasks: Sequence[Task], update: Callable[[TaskEvent], None], out: Path, **options: Any
) -> Generator[TaskEvent, None, None]:
    """Trains tasks on a backend with these `options`; yields each event after `update` has received it.

    The processes that train import the files that registered components in this process.
    """
    from favorit.training.components import check_importable, sources

    if not tasks:
        return
    check_importable(task.config for task in tasks)
    with closing(backend(tasks, out, sources=sources(), **options)) as events:
        for event in events:
            update(event)
            yield event


def survey(plan: Plan, out: str | Path, pack: str | Path | None = None) -> Report:
    """The report of a plan from the runs in `out` and the packed runs in `pack`; writes nothing."""
    report = Report(plan, Path(out), None if pack is None else Path(pack))
    for task in plan.tasks:
        found = find_run(task.id, *_folders(out, pack))
        try:
            result = found.result() if task.id else None
        except FavoritError as error:
            report.errors[task.name] = str(error)
            continue
        if not has_ended(result):
            if task.name in plan.absent:
                report.errors[task.name] = plan.absent[task.name]
            else:
                report.missing[task.name] = task
        elif result["status"] == "failed":
            report.errors[task.name] = str(found.failed_before(result))
        else:
            report.results[task.name] = result
    return report


def prepare(plan: Plan, out: str | Path, pack: str | Path | None = None) -> Report:
    """Like `survey`, but first creates the folders and indexes, and packs finished runs that a kill left unpacked."""
    Path(out).mkdir(parents=True, exist_ok=True)
    if pack is not None:
        create_pack_folder(pack)
    for folder in _folders(out, pack):  # with an index in both folders, `study status` needs no data
        write_index(plan, folder)
    packing = Report(plan, Path(out), None if pack is None else Path(pack))
    for task in plan.ready:
        packing.pack_finished(task)
    report = survey(plan, out, pack)
    report.unpacked.update(packing.unpacked)
    for task in plan.ready:
        if task.name in report.results:
            find_run(task.id, out).tidy_unheld()
    warn_of_changed_files([task for task in plan.tasks if task.name in report.results], *_folders(out, pack))
    return report


def _folders(out: str | Path, pack: str | Path | None) -> list[str | Path]:
    return [out] if pack is None else [out, pack]


def choose_backend(
    *, workers: int = 1, ray: str | None = None, cpus: int | None = None, gpus: float | None = None
) -> Backend:
    """The backend: local workers, or the Ray cluster at the address `ray`, where each run uses `cpus` CPUs and `gpus`
    GPUs.
    """
    sizes: dict[str, Any] = {name: size for name, size in (("cpus", cpus), ("gpus", gpus)) if size is not None}
    if ray is not None:
        from favorit.study.cluster import cluster

        return partial(cluster, address=ray, **sizes)
    if sizes:
        given = " and ".join(f"{name}={size:g}" for name, size in sizes.items())
        raise FavoritError(f"{given} is valid only for runs on a Ray cluster: add --ray ADDRESS, or remove it")
    from favorit.study.local import local

    return partial(local, workers=workers)


@dataclass(frozen=True)
class State:
    """The status of one point: complete, failed, pruned, training, stopped, damaged, missing, or no data. Only a
    complete run has a `result`. `merged` has the groups of other points of the study that are the same run.
    """

    name: str
    group: str
    id: str
    status: str
    epochs: int | None = None
    accuracy: float | None = None
    error: str | None = None
    result: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    merged: tuple[str, ...] = ()


def status(
    study: Study | str | Path,
    out: str | Path = "runs",
    *,
    pack: str | Path | None = None,
    options: Options | None = None,
    data_dir: str | Path | None = None,
) -> list[State]:
    """The status of each point of a study, from the runs in `out` and the packed runs in `pack`."""
    study = study if isinstance(study, Study) else load_study(study)
    known = entries(study, options or Options(), out, data_dir, pack)
    return [_state(entry, _folders(out, pack)) for entry in known]


def states(plan: Plan, out: str | Path, pack: str | Path | None = None) -> list[State]:
    """The status of each task of a plan. It is "no data" if both the run and its data set are missing."""
    found = [_state(task, _folders(out, pack)) for task in plan.tasks]
    return [
        replace(state, status="no data") if state.status == "missing" and state.name in plan.absent else state
        for state in found
    ]


def _state(point: Task | Entry, places: Sequence[str | Path]) -> State:
    state = State(point.name, point.group, point.id, "no data", merged=tuple(point.merged))
    if not point.id:
        return state
    run = find_run(point.id, *places)
    try:
        result = run.result()
        if result is None and not run.exists():
            return replace(state, status="missing", error=run.error())
        found = run_status(run, result)
        if result is None:
            return replace(state, status=found, epochs=len(run.epochs()), error=run.error())
    except FavoritError as error:
        return replace(state, status="damaged", error=str(error))
    return replace(
        state,
        status=found,
        epochs=result.get("epochs"),
        accuracy=result.get("test", {}).get("accuracy"),
        error=result.get("error"),
        result=result if found == "complete" else None,
    )


def records(
    states: Iterable[State], out: str | Path, pack: str | Path | None = None
) -> dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]]:
    """(result, epochs) of each complete run, by the group of its point. Damaged epoch records are an empty list."""
    found: dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]] = {}
    for state in states:
        if state.result is not None:
            epochs: list[dict[str, Any]] = []
            with suppress(FavoritError):
                epochs = find_run(state.id, *_folders(out, pack)).epochs()
            found.setdefault(state.group, []).append((state.result, epochs))
    return found
