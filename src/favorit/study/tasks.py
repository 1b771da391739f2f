"""What a runner is given to do, and what it says while it does it. Where the work happens (processes here, a cluster)
is a backend.

A backend is a generator function `backend(tasks, out, source=..., ...)`: it trains every task into `out`/<id> where the
study's file is imported, goes on where a run was interrupted, tries again what died with its process, and yields
exactly one Ended or Broke for each task.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from favorit.config import RunConfig


@dataclass(frozen=True)
class Task:
    """A run to be done: the name of its point, its configuration, and its identifier. Tasks of one `group` only repeat
    each other.
    """

    name: str
    config: RunConfig
    id: str
    group: str = ""


@dataclass(frozen=True)
class Began:
    """A worker took the task up after `step` optimiser steps; `where` names the worker for people."""

    task: Task
    step: int
    where: str


@dataclass(frozen=True)
class Trained:
    """One epoch of the task is trained, validated and on disk (`record`: a line of epochs.jsonl)."""

    task: Task
    record: dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """The task is complete: `result` is what its result.json holds. `elsewhere`: another runner did it."""

    task: Task
    result: dict[str, Any]
    elsewhere: bool = False


@dataclass(frozen=True)
class Broke:
    """The task cannot be completed now; the others go on. `later`: nothing is wrong, the time that was given is up."""

    task: Task
    error: str
    later: bool = False


TaskEvent = Began | Trained | Ended | Broke
Backend = Callable[..., Generator[TaskEvent, None, None]]
