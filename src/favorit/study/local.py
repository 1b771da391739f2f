"""Local backend: trains a study in worker processes that share the cores of this machine."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from favorit.errors import check_positive
from favorit.source import Source
from favorit.study.tasks import Ended, EpochDone, Task, TaskEvent, Unfinished
from favorit.study.worker import Held, Order, work
from favorit.training.folder import RunFolder
from favorit.workers import Exit, Worker, WorkerPool

TRIES = 3
POLL = 0.5  # seconds between two checks of the deadline and of runs that other processes hold


def local(
    tasks: Sequence[Task],
    out: str | Path,
    *,
    workers: int = 1,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
    hours: float | None = None,
    checkpoint_seconds: float = 60.0,
    sources: tuple[Source, ...] = (),
) -> Generator[TaskEvent, None, None]:
    """Trains tasks in `workers` processes. If a worker dies, another worker resumes its task from the checkpoint. A
    task fails after TRIES deaths without a new epoch.

    If another process holds the lock of a run, its task waits until the lock is free. After `hours` hours no run
    starts, and running ones stop at their next checkpoint. Every worker imports the files `sources`.
    """
    import torch

    check_positive(workers=workers)
    order = Order(
        name="",
        out=str(out),
        data_dir=None if data_dir is None else str(data_dir),
        accelerator=accelerator,
        checkpoint_seconds=checkpoint_seconds,
        workers=min(workers, max(len(tasks), 1)),
        threads=max(1, torch.get_num_threads() // workers),
        deadline=float("inf") if hours is None else time.monotonic() + 3600 * hours,
        sources=sources,
    )
    with WorkerPool(threads=order.threads) as pool:
        yield from _Dispatcher(tasks, order, pool).events()


class _Dispatcher:
    """Assigns tasks to workers. An unfinished task is `pending`, `held` (another runner trains it), or `running` in a
    worker.
    """

    def __init__(self, tasks: Sequence[Task], order: Order, pool: WorkerPool) -> None:
        self.order = order
        self.pool = pool
        self.pending = deque(tasks)
        self.held: list[Task] = []
        self.workers: dict[int, Worker] = {}
        self.running: dict[Worker, Task] = {}
        self.deaths: Counter[str] = Counter()
        self.last_check = 0.0

    def events(self) -> Iterator[TaskEvent]:
        while self.pending or self.held or self.running:
            if time.monotonic() >= self.order.deadline:
                yield from self._postpone()
            self._assign()
            for worker, message in self.pool.messages(POLL if self.held or self.running else 0.0):
                yield from self._handle(worker, message)

    def _postpone(self) -> Iterator[TaskEvent]:
        for task in (*self.pending, *self.held):
            yield Unfinished(task, "the time is up; rerun the same command to start it", later=True)
        self.pending.clear()
        self.held.clear()

    def _assign(self) -> None:
        for number in range(1, self.order.workers + 1):
            worker = self.workers.get(number)
            if worker in self.running:
                continue
            task = self._next()
            if task is None:
                return
            if worker is None:
                worker = self.pool.start(work, replace(self.order, name=f"worker {number}"))
                self.workers[number] = worker
            self.running[worker] = task
            worker.send(task)

    def _next(self) -> Task | None:
        """The next task whose run is free, or None; checks held runs again every POLL seconds."""
        if self.held and time.monotonic() - self.last_check >= POLL:
            self.last_check = time.monotonic()
            self.pending.extend(self.held)
            self.held.clear()
        while self.pending:
            task = self.pending.popleft()
            if not RunFolder(Path(self.order.out) / task.id).held():
                return task
            self.held.append(task)
        return None

    def _handle(self, worker: Worker, message: TaskEvent | Held | Exit) -> Iterator[TaskEvent]:
        if isinstance(message, Exit):
            yield from self._remove(worker, message)
            return
        task = self.running[worker]
        if isinstance(message, Ended | Unfinished | Held):
            del self.running[worker]
        if isinstance(message, EpochDone):
            self.deaths[task.id] = 0
        if isinstance(message, Held):
            self.held.append(task)
        else:
            yield message

    def _remove(self, worker: Worker, end: Exit) -> Iterator[TaskEvent]:
        """Removes a dead worker. Its task is assigned again, or fails after TRIES deaths."""
        self.workers = {number: each for number, each in self.workers.items() if each is not worker}
        task = self.running.pop(worker, None)
        if task is None:
            return
        self.deaths[task.id] += 1
        if self.deaths[task.id] < TRIES:
            self.pending.appendleft(task)
        else:
            yield Unfinished(task, f"its worker died {TRIES} times without progress; the last time: {end}")
