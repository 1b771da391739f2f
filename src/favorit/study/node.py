"""What a node of a cluster does: trains one task in a temporary folder, and says what happens with the files that
belong to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from favorit import __version__
from favorit.config import RunConfig
from favorit.errors import FavoritError
from favorit.quiet import training
from favorit.study.join import find, room
from favorit.study.source import Source, said
from favorit.study.tasks import Task
from favorit.study.travel import Contents, lay_down, pack
from favorit.study.worker import DATA_SETS, forget
from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step
from favorit.training.folder import RunFolder

Item = TypeVar("Item")


@dataclass(frozen=True)
class Order:
    """How tasks are trained on a node. `out` is where the run is kept at the driver, `folder` the driver's directory;
    paths mean what they mean on the node. `wanted` is what a run takes of a node, `source` the file of the study,
    `version` the driver's.
    """

    out: str
    folder: str
    data_dir: str | None
    accelerator: str
    wanted: dict[str, float]
    checkpoint_seconds: float
    source: Source | None = None
    version: str = __version__


@dataclass(frozen=True)
class Failed:
    """The task cannot be completed on this node, and would not be on its like."""

    error: str


@dataclass(frozen=True)
class Word:
    """What a node says: what happened, and the run folder as it was then (where it has changed)."""

    node: str
    event: Begin | Epoch | Checkpoint | End | Failed
    contents: Contents


def work(task: Task, contents: Contents, order: Order) -> Iterator[Word]:
    """Trains a task from what is known of it (`contents`) to its end. Only a process or node that dies says nothing."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    if Path(order.folder).is_dir():  # so that data in a relative place are found
        os.chdir(order.folder)
    with TemporaryDirectory(prefix="favorit-", ignore_cleanup_errors=True) as place:
        folder = RunFolder(Path(place) / task.id)
        folder.path.mkdir()
        try:
            lay_down(contents, folder)
            training: Generator[Event, None, None] = _in_turn(
                partial(_train, task, place, order, room(find(ray, node), order.wanted))
            )
            with closing(training) as events:
                for event in events:
                    if isinstance(event, Begin):
                        _compare(task, Path(event.path).name, order.version)
                        yield Word(node, event, {})
                    elif isinstance(event, Epoch | Checkpoint):
                        yield Word(node, event, pack(folder))
                    elif isinstance(event, End):
                        last = Word(node, event, pack(folder))
        except Exception as error:
            # What was worth keeping has travelled, but for the record of a run that diverged.
            recorded = (folder.path / "result.json").exists()
            last = Word(node, Failed(said(error).replace(place, order.out)), pack(folder) if recorded else {})
    yield last  # after which nobody waits for this process to tidy up


def _train(task: Task, place: str, order: Order, workers: int, hand: Callable[[Event], None]) -> None:
    import torch

    from favorit.training.run import train

    torch.set_num_threads(int(order.wanted["CPU"]))  # in this thread: OpenMP keeps a number for each
    forget()
    if order.source is not None:
        order.source.load()
    with training() as pause:

        def listen(event: Event, config: RunConfig) -> None:
            if isinstance(event, Step):
                pause()
            hand(event)

        train(
            task.config,
            out=place,
            data_dir=order.data_dir,
            accelerator=order.accelerator,
            checkpoint_seconds=order.checkpoint_seconds,
            workers=workers,
            read=_reader(),
            listen=listen,
        )


@cache
def _reader() -> Callable[..., Any]:
    """Reads data sets; the last ones stay in memory, as this process does, from task to task."""
    from favorit.data import load_dataset

    return lru_cache(DATA_SETS)(load_dataset)


def _compare(task: Task, found: str, version: str) -> None:
    if (found, __version__) != (task.id, version):
        raise FavoritError(
            f"the run is {found} with favorit {__version__} here, but {task.id} with favorit {version} where the study was started: "
            f"put the same {task.config.data.name} and the same favorit on every node"
        )


class _Abandoned(BaseException):
    """Nobody takes the next item: whoever hands items over ends here."""


def _in_turn(push: Callable[[Callable[[Item], None]], Any]) -> Generator[Item, None, None]:
    """What `push` hands to its callback, one by one. It runs in a thread of its own, but never while an item is being
    looked at.
    """
    handed: SimpleQueue[Item | None] = SimpleQueue()
    taken: SimpleQueue[bool] = SimpleQueue()

    def hand(item: Item) -> None:
        handed.put(item)
        if not taken.get():
            raise _Abandoned

    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(push, hand)
        pushing.add_done_callback(lambda _: handed.put(None))
        try:
            while (item := handed.get()) is not None:
                yield item
                taken.put(True)
        finally:
            taken.put(False)
        pushing.result()
