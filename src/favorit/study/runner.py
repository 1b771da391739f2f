"""Runs what is missing of a study, here or on a cluster, and says how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from favorit.errors import FavoritError
from favorit.study.load import load_study
from favorit.study.packing import pack_stored, packs_folder
from favorit.study.plan import Plan, entries, make_plan, write_index
from favorit.study.study import Options, Study
from favorit.study.tasks import Backend, Broke, Ended, Task, TaskEvent
from favorit.training.find import find_run
from favorit.training.folder import RunFolder
from favorit.training.records import status as run_status
from favorit.training.stored import has_ended


@dataclass
class Report:
    """How a study stands, by the names of its points: results of complete runs, errors of those that failed, what is
    left to do.

    Finished runs are packed into the folder `pack`, if there is one; `unpacked` says which could not be, and why.
    """

    plan: Plan
    out: Path
    pack: Path | None = None
    unpacked: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    missing: dict[str, Task] = field(default_factory=dict)

    def hear(self, event: TaskEvent) -> None:
        """Enters what a backend says; why a run broke goes to its folder."""
        name = event.task.name
        if isinstance(event, Ended):
            self.results[name] = event.result
            del self.missing[name]
            self.keep(event.task)
        elif isinstance(event, Broke) and not event.later:
            self.errors[name] = event.error
            del self.missing[name]
            folder = RunFolder(self.out / event.task.id)
            with suppress(OSError, FavoritError):  # a full disk is often what broke it
                if folder.result() is None:
                    folder.write_error(event.error)
            self.keep(event.task)

    def keep(self, task: Task) -> bool:
        """Packs the run of a task if it has finished in `out`; True if it is then packed. A damaged packed file is
        written again.
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
        except OSError as error:  # such as a full disk: the run itself is kept, and packed when the study is run again
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
    """Runs what is missing of a study (its name, its file or itself) into `out`; the same call resumes where one was
    interrupted.

    Each run that finishes is packed into the folder `pack`, if given. Runs that are packed there or in `out` count as
    done.

    It runs in `workers` processes here, or on the Ray cluster at the address `ray`, where each run takes `cpus` CPUs
    and `gpus` GPUs. All of them know what the study's file registers; a script that has its study in itself gives its
    file: `run(__file__)`.
    """
    backend = choose(workers=workers, ray=ray, cpus=cpus, gpus=gpus)
    study = study if isinstance(study, Study) else load_study(study)
    report = begin(make_plan(study, options or Options(), data_dir=data_dir, fetch=True), out, pack)
    for event in events(report, backend, hours=hours, data_dir=data_dir, accelerator=accelerator):
        if listen is not None:
            listen(event)
    return report


def survey(plan: Plan, out: str | Path, pack: str | Path | None = None) -> Report:
    """What is there already of a plan, in `out` or packed in `pack`; writes nothing."""
    report = Report(plan, Path(out), None if pack is None else Path(pack))
    for task in plan.tasks:
        found = find_run(task.id, *_places(out, pack))
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


def begin(plan: Plan, out: str | Path, pack: str | Path | None = None) -> Report:
    """The same, with the folders and indexes that a run of the study needs. What a kill left unpacked is packed
    first.
    """
    Path(out).mkdir(parents=True, exist_ok=True)
    if pack is not None:
        packs_folder(pack)
    for place in _places(out, pack):  # with the index, `study status` of either folder needs no data
        write_index(plan, place)
    unkept = Report(plan, Path(out), None if pack is None else Path(pack))
    for task in plan.ready:
        unkept.keep(task)
    report = survey(plan, out, pack)
    report.unpacked.update(unkept.unpacked)
    for task in plan.ready:
        if task.name in report.results:
            find_run(task.id, out).tidy_unheld()
    return report


def _places(out: str | Path, pack: str | Path | None) -> list[str | Path]:
    return [out] if pack is None else [out, pack]


def choose(*, workers: int = 1, ray: str | None = None, cpus: int | None = None, gpus: float | None = None) -> Backend:
    """Where runs happen: in local workers, or on the Ray cluster at the address `ray`, where each takes so many CPUs
    and GPUs.
    """
    sizes: dict[str, Any] = {name: size for name, size in (("cpus", cpus), ("gpus", gpus)) if size is not None}
    if ray is not None:
        from favorit.study.cluster import cluster

        return partial(cluster, address=ray, **sizes)
    if sizes:
        given = " and ".join(f"{name}={size:g}" for name, size in sizes.items())
        raise FavoritError(
            f"only a run on a Ray cluster takes {given}: name the cluster (--ray ADDRESS), or leave that out"
        )
    from favorit.study.local import local

    return partial(local, workers=workers)


def events(
    report: Report,
    backend: Backend,
    *,
    hours: float | None = None,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
) -> Iterator[TaskEvent]:
    """Does what is missing where `choose` said, and passes on what the backend says."""
    tasks = list(report.missing.values())
    if not tasks:
        return
    source = report.plan.study.source
    with closing(
        backend(tasks, report.out, source=source, hours=hours, data_dir=data_dir, accelerator=accelerator)
    ) as said:
        for event in said:
            report.hear(event)
            yield event


@dataclass(frozen=True)
class State:
    """How one point stands: complete, failed, pruned, training, stopped, damaged, missing, or no data; `result` of a
    complete run.
    """

    name: str
    group: str
    id: str
    status: str
    epochs: int | None = None
    accuracy: float | None = None
    error: str | None = None
    result: dict[str, Any] | None = field(default=None, compare=False, repr=False)


def status(
    study: Study | str | Path,
    out: str | Path = "runs",
    *,
    pack: str | Path | None = None,
    options: Options | None = None,
    data_dir: str | Path | None = None,
) -> list[State]:
    """How each point of a study stands in `out`, or packed in `pack`."""
    study = study if isinstance(study, Study) else load_study(study)
    known = entries(study, options or Options(), out, data_dir, pack)
    return [_state(entry.name, entry.group, entry.id, _places(out, pack)) for entry in known]


def states(plan: Plan, out: str | Path, pack: str | Path | None = None) -> list[State]:
    """How each task of a plan stands. What is missing and cannot be trained for want of data has no data."""
    found = [_state(task.name, task.group, task.id, _places(out, pack)) for task in plan.tasks]
    return [
        replace(state, status="no data") if state.status == "missing" and state.name in plan.absent else state
        for state in found
    ]


def _state(name: str, group: str, identifier: str, places: Sequence[str | Path]) -> State:
    if not identifier:
        return State(name, group, "", "no data")
    run = find_run(identifier, *places)
    try:
        result = run.result()
        if result is None and not run.exists():
            return State(name, group, identifier, "missing", error=run.error())
        found = run_status(run, result)
        if result is None:
            return State(name, group, identifier, found, len(run.epochs()), error=run.error())
    except FavoritError as error:
        return State(name, group, identifier, "damaged", error=str(error))
    accuracy = result.get("test", {}).get("accuracy")
    complete = result if found == "complete" else None
    return State(name, group, identifier, found, result.get("epochs"), accuracy, result.get("error"), complete)


def records(
    states: Iterable[State], out: str | Path, pack: str | Path | None = None
) -> dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]]:
    """Result and epochs of each complete run, by the group of its point; damaged epochs count as none."""
    found: dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]] = {}
    for state in states:
        if state.result is not None:
            epochs: list[dict[str, Any]] = []
            with suppress(FavoritError):
                epochs = find_run(state.id, *_places(out, pack)).epochs()
            found.setdefault(state.group, []).append((state.result, epochs))
    return found
