"""The code of a cluster node: trains one task in a temporary folder, and yields its events with the run's files."""

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
from favorit.machine_lock import training
from favorit.source import Source, error_line
from favorit.study.join import node_info, node_slots
from favorit.study.tasks import Task
from favorit.study.transfer import Contents, read_contents, write_contents
from favorit.study.worker import DATA_SETS, release_memory
from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step
from favorit.training.folder import RunFolder

Item = TypeVar("Item")


@dataclass(frozen=True)
class Order:
    """How a node trains tasks. `out` is the driver's folder of runs, `folder` is the driver's working directory, and
    `data_dir` is a path on the node. `wanted` has the resources of a run, `sources` has the files that register
    components, and `version` is the driver's version of favorit.
    """

    out: str
    folder: str
    data_dir: str | None
    accelerator: str
    wanted: dict[str, float]
    checkpoint_seconds: float
    sources: tuple[Source, ...] = ()
    version: str = __version__


@dataclass(frozen=True)
class Failed:
    """The task failed with an error. It is not tried on another node."""

    error: str


@dataclass(frozen=True)
class Message:
    """An event of a node, with the files of the run if they have changed."""

    node: str
    event: Begin | Epoch | Checkpoint | End | Failed
    contents: Contents


def work(task: Task, contents: Contents, order: Order) -> Iterator[Message]:
    """Trains a task to its end, starting from the files in `contents`. An error is the last message."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    if Path(order.folder).is_dir():  # relative paths of data sets are relative to it
        os.chdir(order.folder)
    with TemporaryDirectory(prefix="favorit-", ignore_cleanup_errors=True) as temporary:
        folder = RunFolder(Path(temporary) / task.id)
        folder.path.mkdir()
        try:
            write_contents(contents, folder)
            workers = node_slots(node_info(ray, node), order.wanted)
            run: Generator[Event, None, None] = _iterate(partial(_train, task, temporary, order, workers))
            with closing(run) as events:
                for event in events:
                    if isinstance(event, Begin):
                        _check_id(task, Path(event.path).name, order.version)
                        yield Message(node, event, {})
                    elif isinstance(event, Epoch | Checkpoint):
                        yield Message(node, event, read_contents(folder))
                    elif isinstance(event, End):
                        last = Message(node, event, read_contents(folder))
        except Exception as error:
            # The other files were sent with earlier messages; only the result of a diverged run is new.
            has_result = (folder.path / "result.json").exists()
            failed = Failed(error_line(error).replace(temporary, order.out))
            last = Message(node, failed, read_contents(folder) if has_result else {})
    yield last  # only after the cleanup, because the driver does not wait for this process to end


def _train(task: Task, out: str, order: Order, workers: int, emit: Callable[[Event], None]) -> None:
    import torch

    from favorit.training.run import train

    torch.set_num_threads(int(order.wanted["CPU"]))  # OpenMP has one setting per thread: set it in this one
    release_memory()
    for source in order.sources:
        source.load()
    with training() as pause:

        def listen(event: Event, config: RunConfig) -> None:
            if isinstance(event, Step):
                pause()
            emit(event)

        train(
            task.config,
            name=task.name,
            study=task.study or None,
            out=out,
            data_dir=order.data_dir,
            accelerator=order.accelerator,
            checkpoint_seconds=order.checkpoint_seconds,
            workers=workers,
            read=_cached_reader(),
            listen=listen,
            progress=False,
        )


@cache
def _cached_reader() -> Callable[..., Any]:
    """`load_dataset` with a cache that keeps the last data sets in memory between the tasks of this process."""
    from favorit.data import load_dataset

    return lru_cache(DATA_SETS)(load_dataset)


def _check_id(task: Task, found: str, version: str) -> None:
    if (found, __version__) != (task.id, version):
        raise FavoritError(
            f"the run is {found} with favorit {__version__} on the node, but {task.id} with favorit {version} on the "
            f"driver: put the same {task.config.data.name} and the same favorit on every node"
        )


class _AbandonedError(BaseException):
    """Raised in the producer to end it after the consumer has closed the generator."""


def _iterate(produce: Callable[[Callable[[Item], None]], Any]) -> Generator[Item, None, None]:
    """Yields the items that `produce` passes to its callback. `produce` runs in a separate thread, which pauses while
    the consumer handles an item.
    """
    items: SimpleQueue[Item | None] = SimpleQueue()
    handled: SimpleQueue[bool] = SimpleQueue()

    def emit(item: Item) -> None:
        items.put(item)
        if not handled.get():
            raise _AbandonedError

    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(produce, emit)
        producing.add_done_callback(lambda _: items.put(None))
        try:
            while (item := items.get()) is not None:
                yield item
                handled.put(True)
        finally:
            handled.put(False)
        producing.result()
