"""What a person sees while a study runs: on a terminal a bar for the whole and a line for each run under way, plain
lines elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from favorit.study.runner import Report
    from favorit.study.tasks import TaskEvent, Trained

Follower = Callable[["TaskEvent"], None]
QUIET = 30.0  # seconds between two lines about the epochs of one run, where lines stay


@contextmanager
def follower(console: Console, report: Report) -> Iterator[Follower]:
    """A function that shows the events of a study."""
    if not console.is_terminal:
        yield _lines(console, report)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _bars(progress, report)


def _sentence(event: TaskEvent, report: Report) -> str | None:
    """An event that is worth a line of its own: a run that is over, for now or for good."""
    from favorit.study.tasks import Broke, Ended

    done = f"[{len(report.results) + len(report.errors)}/{len(report.plan.tasks)}]"
    if isinstance(event, Ended):
        where = "   done by another runner" if event.elsewhere else ""
        return f"{done} {event.task.name}   test {event.result['test']['accuracy']:.2%}{where}"
    if isinstance(event, Broke):
        return f"{done} {event.task.name}   {'stopped' if event.later else 'failed'}: {event.error}"
    return None


def _epoch(event: Trained) -> str:
    record = event.record
    found = record["validation_accuracy"] if record["validation_accuracy"] is not None else record["train_accuracy"]
    kind = "training" if record["validation_accuracy"] is None else "validation"
    return f"epoch {record['epoch'] + 1}/{event.task.config.train.epochs}, {kind} {found:.2%}"


def _lines(console: Console, report: Report) -> Follower:
    from favorit.study.tasks import Began, Trained

    spoken: dict[str, float] = {}

    def show(event: TaskEvent) -> None:
        name, text = event.task.name, _sentence(event, report)
        if isinstance(event, Began):
            spoken[name] = time.monotonic()
            text = f"{name}   {f'goes on at step {event.step}' if event.step else 'begins'} on {event.where}"
        elif isinstance(event, Trained) and time.monotonic() - spoken.get(name, 0.0) >= QUIET:
            spoken[name] = time.monotonic()
            text = f"{name}   {_epoch(event)}"
        if text is not None:
            console.print(text, soft_wrap=True, markup=False)

    return show


def _bars(progress: object, report: Report) -> Follower:
    from rich.progress import Progress, TaskID

    from favorit.study.tasks import Began, Broke, Ended, Trained

    assert isinstance(progress, Progress)
    whole = progress.add_task(
        report.plan.study.name, total=len(report.plan.tasks), completed=len(report.results) + len(report.errors)
    )
    own: dict[str, TaskID] = {}

    def show(event: TaskEvent) -> None:
        name = event.task.name
        if isinstance(event, Began) and name not in own:
            own[name] = progress.add_task(f"  {name}", total=event.task.config.train.epochs)
        elif isinstance(event, Trained) and name in own:
            progress.update(own[name], completed=event.record["epoch"] + 1, description=f"  {name}   {_epoch(event)}")
        elif isinstance(event, Ended | Broke):
            if name in own:
                progress.remove_task(own.pop(name))
            progress.update(whole, completed=len(report.results) + len(report.errors))
            progress.print(_sentence(event, report), markup=False, soft_wrap=True)

    return show
