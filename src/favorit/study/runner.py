"""Runs what is missing of a study, here or on a cluster, and says how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from favorit.errors import FavoritError
from favorit.study.load import load_study
from favorit.study.plan import Plan, entries, make_plan, write_index
from favorit.study.study import Options, Study
from favorit.study.tasks import Backend, Broke, Ended, Task, TaskEvent
from favorit.training.folder import RunFolder
from favorit.training.records import status as run_status


@dataclass
class Report:
    """How a study stands, by the names of its points: results of complete runs, errors of those that failed, what is left to do."""

    plan: Plan
    out: Path
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    missing: dict[str, Task] = field(default_factory=dict)

    def hear(self, event: TaskEvent) -> None:
        """Enters what a backend says; why a run broke goes to its folder."""
        name = event.task.name
        if isinstance(event, Ended):
            self.results[name] = event.result
            del self.missing[name]
        elif isinstance(event, Broke) and not event.later:
            self.errors[name] = event.error
            del self.missing[name]
            folder = RunFolder(self.out / event.task.id)
            with suppress(OSError, FavoritError):  # a full disk is often what broke it
                if folder.result() is None:
                    folder.write_error(event.error)


def run(
    study: Study | str | Path,
    out: str | Path = "runs",
    *,
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
    """Runs what is missing of a study (its name, its file or itself) into `out`; the same call goes on where one was interrupted.

    It runs in `workers` processes here, or on the Ray cluster at the address `ray`, where each run takes `cpus` CPUs and `gpus` GPUs. All
    of them know what the study's file registers; a script that has its study in itself gives its file: `run(__file__)`.
    """
    backend = choose(workers=workers, ray=ray, cpus=cpus, gpus=gpus)
    study = study if isinstance(study, Study) else load_study(study)
    report = begin(make_plan(study, options or Options(), data_dir=data_dir, fetch=True), out)
    for event in events(report, backend, hours=hours, data_dir=data_dir, accelerator=accelerator):
        if listen is not None:
            listen(event)
    return report


def begin(plan: Plan, out: str | Path) -> Report:
    """What is there already of a plan."""
    report = Report(plan, Path(out), errors=dict(plan.absent))
    report.out.mkdir(parents=True, exist_ok=True)
    write_index(plan, out)
    for task in plan.ready:
        folder = RunFolder(report.out / task.id)
        try:
            result = folder.result()
        except FavoritError as error:
            report.errors[task.name] = str(error)
            continue
        if result is None or result["status"] == "pruned":
            report.missing[task.name] = task
        elif result["status"] == "failed":
            report.errors[task.name] = str(folder.failed_before(result))
        else:
            folder.tidy_unheld()
            report.results[task.name] = result
    return report


def choose(*, workers: int = 1, ray: str | None = None, cpus: int | None = None, gpus: float | None = None) -> Backend:
    """Where runs happen: in local workers, or on the Ray cluster at the address `ray`, where each takes so many CPUs and GPUs."""
    sizes: dict[str, Any] = {name: size for name, size in (("cpus", cpus), ("gpus", gpus)) if size is not None}
    if ray is not None:
        from favorit.study.cluster import cluster

        return partial(cluster, address=ray, **sizes)
    if sizes:
        given = " and ".join(f"{name}={size:g}" for name, size in sizes.items())
        raise FavoritError(f"only a run on a Ray cluster takes {given}: name the cluster (--ray ADDRESS), or leave that out")
    from favorit.study.local import local

    return partial(local, workers=workers)


def events(
    report: Report, backend: Backend, *, hours: float | None = None, data_dir: str | Path | None = None, accelerator: str = "auto"
) -> Iterator[TaskEvent]:
    """Does what is missing where `choose` said, and passes on what the backend says."""
    tasks = list(report.missing.values())
    if not tasks:
        return
    source = report.plan.study.source
    with closing(backend(tasks, report.out, source=source, hours=hours, data_dir=data_dir, accelerator=accelerator)) as said:
        for event in said:
            report.hear(event)
            yield event


@dataclass(frozen=True)
class State:
    """How one point stands: complete, failed, pruned, training, stopped, damaged, missing, or no data; `result` of a complete run."""

    name: str
    group: str
    id: str
    status: str
    epochs: int | None = None
    accuracy: float | None = None
    error: str | None = None
    result: dict[str, Any] | None = field(default=None, compare=False, repr=False)


def status(
    study: Study | str | Path, out: str | Path = "runs", *, options: Options | None = None, data_dir: str | Path | None = None
) -> list[State]:
    """How each point of a study stands in `out`."""
    study = study if isinstance(study, Study) else load_study(study)
    return [_state(entry.name, entry.group, entry.id, out) for entry in entries(study, options or Options(), out, data_dir)]


def states(plan: Plan, out: str | Path) -> list[State]:
    """How each task of a plan stands."""
    return [_state(task.name, task.group, task.id, out) for task in plan.tasks]


def _state(name: str, group: str, identifier: str, out: str | Path) -> State:
    if not identifier:
        return State(name, group, "", "no data")
    folder = RunFolder(f"{out}/{identifier}")
    try:
        result = folder.result()
        if result is None and not (folder.path / "config.json").exists():
            return State(name, group, identifier, "missing", error=folder.error())
        found = run_status(folder, result)
        if result is None:
            return State(name, group, identifier, found, len(folder.epochs()), error=folder.error())
    except FavoritError as error:
        return State(name, group, identifier, "damaged", error=str(error))
    accuracy = result.get("test", {}).get("accuracy")
    complete = result if found == "complete" else None
    return State(name, group, identifier, found, result.get("epochs"), accuracy, result.get("error"), complete)


def records(states: Iterable[State], out: str | Path) -> dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]]:
    """Result and epochs of each complete run, by the group of its point; damaged epochs count as none."""
    found: dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]] = {}
    for state in states:
        if state.result is not None:
            epochs: list[dict[str, Any]] = []
            with suppress(FavoritError):
                epochs = RunFolder(f"{out}/{state.id}").epochs()
            found.setdefault(state.group, []).append((state.result, epochs))
    return found
