"""The tasks of a runner, the events that it yields, and the interface of a backend (local processes or a cluster).

A backend is a generator function `backend(tasks, out, sources=..., ...)`. It trains every task into `out`/<id> in
processes that have imported the files `sources`, resumes interrupted runs, retries a task whose process died, and
yields exactly one Ended or Unfinished for each task.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from favorit.config import RunConfig


@dataclass(frozen=True)
class Task:
    """A run to train: the name of its point, its configuration, its identifier, and the name of its study. Tasks of one
    `group` differ only in seed or fold. `merged` has the groups of the other points of the study that are the same run.
    """

    name: str
    config: RunConfig
    id: str
    group: str = ""
    merged: tuple[str, ...] = ()
    study: str = ""


@dataclass(frozen=True)
class Began:
    """A worker starts or resumes the task after `step` optimizer steps. `where` is the name of the worker or node."""

    task: Task
    step: int
    where: str


@dataclass(frozen=True)
class EpochDone:
    """One epoch is trained, validated and saved. `record` is its line of epochs.jsonl."""

    task: Task
    record: dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """The task is complete. `result` is its result.json; `elsewhere` is true if another runner trained it."""

    task: Task
    result: dict[str, Any]
    elsewhere: bool = False


@dataclass(frozen=True)
class Unfinished:
    """The task ends without a result: it failed, or is postponed (`later` is true) because the time is up.

    Other tasks continue.
    """

    task: Task
    error: str
    later: bool = False


TaskEvent = Began | EpochDone | Ended | Unfinished
Backend = Callable[..., Generator[TaskEvent, None, None]]
