"""What a study worker does: trains the tasks it receives, one after the other, and sends their events.

Libraries and the last data sets stay in memory from task to task.
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
from favorit.quiet import training
from favorit.study.source import Source, said
from favorit.study.tasks import Began, Broke, Ended, Task, TaskEvent, Trained
from favorit.training.events import Begin, Checkpoint, Epoch, Event, Step
from favorit.training.folder import HeldError
from favorit.workers import Parent

DATA_SETS = 2


@dataclass(frozen=True)
class Order:
    """How a worker trains. `workers` share the machine, each with `threads`; after `deadline` (monotonic time) runs
    stop where they can.

    `source` is the file of the study, whose components are known once it is imported.
    """

    name: str
    out: str
    data_dir: str | None
    accelerator: str
    checkpoint_seconds: float
    workers: int
    threads: int
    deadline: float
    source: Source | None = None


@dataclass(frozen=True)
class Held:
    """Another process trains the task."""

    task: Task


class _TimeIsUpError(Exception):
    """The run is on disk, and goes on with the same command."""


def work(parent: Parent, order: Order) -> None:
    """Trains tasks until the parent closes the connection."""
    import torch

    from favorit.data import load_dataset

    torch.set_num_threads(order.threads)
    read = lru_cache(DATA_SETS)(load_dataset)
    while True:
        parent.send(_attempt(parent.receive(), order, read, parent.send))


def _attempt(task: Task, order: Order, read: Any, tell: Callable[[TaskEvent], None]) -> Ended | Broke | Held:
    """Trains a task as far as it goes."""
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
                    f"{config.data.name} has changed since the study was planned: start the same command again"
                )
            tell(Began(task, event.step, order.name))
        elif isinstance(event, Epoch):
            tell(Trained(task, asdict(event)))
        if isinstance(event, Epoch | Checkpoint) and time.monotonic() >= order.deadline:
            raise _TimeIsUpError("the time is up; the same command goes on")

    forget()
    try:
        if order.source is not None:
            order.source.load()
        with training() as pause:
            run = train(
                task.config,
                out=order.out,
                data_dir=order.data_dir,
                accelerator=order.accelerator,
                checkpoint_seconds=order.checkpoint_seconds,
                workers=order.workers,
                read=read,
                listen=partial(listen, pause=pause),
            )
        return Ended(task, run.result, elsewhere=not began)
    except HeldError:
        return Held(task)
    except _TimeIsUpError as error:
        return Broke(task, str(error), later=True)
    except Exception as error:
        return Broke(task, said(error))


def forget() -> None:
    """Gives the memory of the last run back, and lets the system's record of the largest size begin anew: a run reports
    its own.
    """
    gc.collect()
    gc.freeze()  # what stays, the libraries above all, need not be looked through again
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
