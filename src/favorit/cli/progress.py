"""Progress of studies, searches and benchmarks: each event prints lines and moves bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from favorit.cli.shared import PROGRESS
from favorit.display import Display

if TYPE_CHECKING:
    from rich.console import Console

    from favorit.study.queue import PlannedEntry, Queue
    from favorit.study.runner import Report
    from favorit.study.tasks import EpochDone, TaskEvent
    from favorit.tuning.events import TrialFinished, TuneEvent

BAR_DELAY = 2.0  # seconds until the bar of a benchmark appears
EPOCH_INTERVAL = 30.0  # seconds between two lines about the epochs of one run of a study, in piped output


@contextmanager
def delayed_bar(console: Console, text: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function of (done, total) that moves a bar. The bar appears after `BAR_DELAY` seconds."""
    with Display(console, BAR_DELAY) as display:
        yield lambda done, total: display.bar("work", text, done, total)


# Studies and queues


@contextmanager
def study_progress(console: Console, report: Report) -> Iterator[Callable[[TaskEvent], None]]:
    """Yields a function of study events: a line for each finished run, a total bar and a bar per running run.

    Piped output also has a line for the start of a run, and lines about its epochs.
    """
    from favorit.study.tasks import Began, Ended, EpochDone, Unfinished

    last_line: dict[str, float] = {}

    def count() -> tuple[int, int]:
        return len(report.results) + len(report.errors), len(report.plan.tasks)

    with Display(console) as display:
        draw = _task_bars(display, report.plan.study.name, count)

        def on_event(event: TaskEvent) -> None:
            draw(event)
            name, now = event.task.name, time.monotonic()
            if isinstance(event, Began):
                last_line[name] = now
                action = f"resumes at step {event.step}" if event.step else "starts"
                display.piped_line(f"{name}   {action} on {event.where}")
            elif isinstance(event, EpochDone) and now - last_line.get(name, 0.0) >= EPOCH_INTERVAL:
                last_line[name] = now
                display.piped_line(f"{name}   {_epoch_accuracy(event)}")
            elif isinstance(event, Ended | Unfinished):
                place = "[{}/{}]".format(*count())
                elsewhere = "   done by another runner" if isinstance(event, Ended) and event.elsewhere else ""
                display.line(f"{place} {name}   {_outcome(event)}{elsewhere}")

        yield on_event


@contextmanager
def queue_progress(console: Console, queue: Queue, workers: int) -> Iterator[Callable[[PlannedEntry, TaskEvent], None]]:
    """Yields a function of queue events: a line for each finished run, a total bar and a bar per running run."""
    from favorit.cli.study_tables import duration
    from favorit.study.tasks import Ended, Unfinished

    def count() -> tuple[int, int]:
        counts = queue.counts()
        return counts.done + counts.failed, sum(counts)

    with Display(console) as display:
        draw = _task_bars(display, "queue", count)

        def on_event(planned: PlannedEntry, event: TaskEvent) -> None:
            draw(event)
            if not isinstance(event, Ended | Unfinished):
                return
            line = "[{}/{}] ".format(*count()) + f"{planned.entry.title}: {event.task.name}   {_outcome(event)}"
            if isinstance(event, Ended):
                left = queue.seconds_left(workers)
                line += f"   {duration(event.result.get('total_seconds'))}"
                line += f"   about {duration(left)} left" if left else ""
            display.line(line)

        yield on_event


def _task_bars(display: Display, title: str, count: Callable[[], tuple[int, int]]) -> Callable[[TaskEvent], None]:
    """A function that moves a bar for all tasks and one for each running task. `count` returns (done, total)."""
    from favorit.study.tasks import Began, Ended, EpochDone, Unfinished

    def draw(event: TaskEvent) -> None:
        PROGRESS.is_resumable |= isinstance(event, EpochDone | Ended) or (isinstance(event, Began) and event.step > 0)
        task, epochs = event.task, event.task.config.train.epochs
        if isinstance(event, Began):
            display.bar(task.id, f"  {task.name}", 0, epochs)
        elif isinstance(event, EpochDone):
            text = f"  {task.name}   {_epoch_accuracy(event)}"
            display.bar(task.id, text, event.record["epoch"] + 1, epochs)
        elif isinstance(event, Ended | Unfinished):
            display.remove(task.id)
            display.bar("", title, *count())

    PROGRESS.is_resumable = count()[0] > 0
    display.bar("", title, *count())
    return draw


def _outcome(event: TaskEvent) -> str:
    from favorit.study.tasks import Ended, Unfinished

    if isinstance(event, Unfinished):
        return f"{'stopped' if event.later else 'failed'}: {event.error}"
    return f"test {event.result['test']['accuracy']:.2%}" if isinstance(event, Ended) else ""


def _epoch_accuracy(event: EpochDone) -> str:
    record = event.record
    part = "train" if record["validation_accuracy"] is None else "validation"
    name = {"train": "training", "validation": "validation"}[part]
    return f"epoch {record['epoch'] + 1}/{event.task.config.train.epochs}, {name} {record[f'{part}_accuracy']:.2%}"


# Tuning


@contextmanager
def tuning_progress(console: Console) -> Iterator[Callable[[TuneEvent], None]]:
    """Yields a function for `favorit.tune(listen=...)`: lines for each trial, a total bar, a bar per running trial."""
    from favorit.tuning.events import StudyStarted, TrialFinished, TrialProgress, TrialStarted

    finished = trials = 0
    with Display(console) as display:

        def on_event(event: TuneEvent) -> None:
            nonlocal finished, trials
            PROGRESS.is_resumable |= isinstance(event, TrialFinished) or (
                isinstance(event, TrialProgress) and event.accuracy is not None
            )
            if isinstance(event, StudyStarted):
                finished, trials = event.finished, event.trials
                PROGRESS.is_resumable = finished > 0
            elif isinstance(event, TrialStarted):
                values = ", ".join(f"{key} {format_value(value)}" for key, value in event.values.items())
                display.line(f"trial {event.number} {'resumes' if event.resumed else 'starts'}: {values}")
                display.bar(event.number, f"trial {event.number}", 0, 1.0)
            elif isinstance(event, TrialProgress):
                accuracy = "" if event.accuracy is None else f"  validation {event.accuracy:.2%}"
                display.bar(event.number, f"trial {event.number}{accuracy}", event.share, 1.0)
            else:
                finished += 1
                display.remove(event.number)
                display.line(_trial_line(event))
            display.bar("study", "trials", finished, trials)

        yield on_event


def _trial_line(event: TrialFinished) -> str:
    if event.error is not None:
        return f"trial {event.number} failed: {event.error}"
    line = f"trial {event.number} is {event.state}"
    if event.values:
        line += f": {event.values[0]:.2%}" + "".join(f", {latency:.2f} ms" for latency in event.values[1:])
    return line


def format_value(value: Any) -> str:
    """The value of a searched field as displayed text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
