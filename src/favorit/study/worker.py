"""A study worker: trains the tasks it receives, one after the other, and sends their events.

Imported libraries and the last data sets stay in memory between tasks.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from favorit.config import RunConfig
from favorit.errors import FavoritError
from favorit.machine_lock import training
from favorit.source import Source, error_line
from favorit.study.tasks import Began, Ended, EpochDone, Task, TaskEvent, Unfinished
from favorit.training.events import Begin, Checkpoint, Epoch, Event, Step
from favorit.training.folder import HeldError
from favorit.workers import Parent

DATA_SETS = 2  # number of data sets that a process keeps in memory


@dataclass(frozen=True)
class Order:
    """How a worker trains. `workers` processes of `threads` threads each share the machine. After `deadline` (monotonic
    time), runs stop at their next checkpoint.

    `sources` are the files that register components: the worker imports them.
    """

    name: str
    out: str
    data_dir: str | None
    accelerator: str
    checkpoint_seconds: float
    workers: int
    threads: int
    deadline: float
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Held:
    """Another process holds the lock of the task's run."""

    task: Task


class _TimeIsUpError(Exception):
    """Stops training after a checkpoint, so that the run can be resumed."""


def work(parent: Parent, order: Order) -> None:
    """Trains tasks until the parent closes the connection."""
    import torch

    from favorit.data import load_dataset

    torch.set_num_threads(order.threads)
    read = lru_cache(DATA_SETS)(load_dataset)
    while True:
        parent.send(_attempt(parent.receive(), order, read, parent.send))


def _attempt(task: Task, order: Order, read: Any, send: Callable[[TaskEvent], None]) -> Ended | Unfinished | Held:
    """Trains a task until it is complete, it fails, or the time is up."""
    from favorit.training.run import train

    began = False

    def listen(event: Event, config: RunConfig, pause: Callable[[], None]) -> None:
        nonlocal began
        if isinstance(event, Step):
            pause()
        elif isinstance(event, Begin):
            began = True
            if Path(event.path).name != task.id:
                raise FavoritError(
                    f"{config.data.name} has changed since the study was planned: rerun the same command"
                )
            send(Began(task, event.step, order.name))
        elif isinstance(event, Epoch):
            send(EpochDone(task, asdict(event)))
        if isinstance(event, Epoch | Checkpoint) and time.monotonic() >= order.deadline:
            raise _TimeIsUpError("the time is up; rerun the same command to resume")

    release_memory()
    try:
        for source in order.sources:
            source.load()
        with training() as pause:
            run = train(
                task.config,
                name=task.name,
                study=task.study or None,
                out=order.out,
                data_dir=order.data_dir,
                accelerator=order.accelerator,
                checkpoint_seconds=order.checkpoint_seconds,
                workers=order.workers,
                read=read,
                listen=partial(listen, pause=pause),
                progress=False,
            )
        return Ended(task, run.result, elsewhere=not began)
    except HeldError:
        return Held(task)
    except _TimeIsUpError as error:
        return Unfinished(task, str(error), later=True)
    except Exception as error:
        return Unfinished(task, error_line(error))


def release_memory() -> None:
    """Frees the memory of the last run, and resets the peak memory of the process, because each run reports its own."""
    gc.collect()
    gc.freeze()  # excludes the imported libraries from later collections
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
