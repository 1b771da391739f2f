"""Tasks on this machine: persistent worker processes that divide its threads between them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryFile

from favorit.errors import positive
from favorit.process import worker_settings
from favorit.study.source import Source
from favorit.study.tasks import Broke, Ended, Task, TaskEvent, Trained
from favorit.study.worker import Held, Order
from favorit.training.folder import RunFolder

TRIES = 3
PAUSE = 0.5  # seconds between two looks at what no worker tells
LEAVE = 5.0  # seconds that a worker has to be gone in


def local(
    tasks: Sequence[Task],
    out: str | Path,
    *,
    workers: int = 1,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
    hours: float | None = None,
    checkpoint_seconds: float = 60.0,
    source: Source | None = None,
) -> Generator[TaskEvent, None, None]:
    """Trains tasks in `workers` processes. A task whose worker dies goes on from its checkpoint, unless three die
    without an epoch between.

    A run that another runner holds is put off until it is done there, or free. After `hours` no run is begun, and those
    under way stop at their next checkpoint. `source` is the file of the study, which every worker imports.
    """
    import torch

    positive(workers=workers)
    order = Order(
        name="",
        out=str(out),
        data_dir=None if data_dir is None else str(data_dir),
        accelerator=accelerator,
        checkpoint_seconds=checkpoint_seconds,
        workers=min(workers, max(len(tasks), 1)),
        threads=max(1, torch.get_num_threads() // workers),
        deadline=float("inf") if hours is None else time.monotonic() + 3600 * hours,
        source=source,
    )
    crew = _Crew(tasks, order)
    try:
        yield from crew.events()
    finally:
        crew.leave()


class _Worker:
    """A worker process as its runner sees it, and the task that it has."""

    def __init__(self, order: Order) -> None:
        self.task: Task | None = None
        self.connection, theirs = Pipe()
        self.last_words = TemporaryFile()  # noqa: SIM115  # it lives as long as the worker
        environment = {
            **os.environ,
            **worker_settings(),
            "OMP_NUM_THREADS": str(order.threads),
            "PYTHONSAFEPATH": "1",  # no module is taken from the folder that the user happens to be in
        }
        with theirs:
            # A program of its own and no fork of this one: a user's script need not guard its main part.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "favorit.study.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.last_words,
                env=environment,
            )
        self._send(order)

    def give(self, task: Task) -> None:
        self.task = task
        self._send(task)

    def _send(self, what: Order | Task) -> None:
        with suppress(OSError):  # it is dead: whoever listens will hear it
            self.connection.send(what)

    def bury(self) -> str:
        """How a dead worker ended, once all it held is released."""
        status = self.process.wait()
        self.last_words.seek(0)
        lines = self.last_words.read().decode(errors="replace").split("\n")
        self.leave()
        said = next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")
        return f"exit status {status}{said}" if status >= 0 else f"signal {-status}{said}"

    def leave(self) -> None:
        """Ends the process, which stops when the connection closes."""
        self.connection.close()
        self.last_words.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVE)
        self.process.kill()
        self.process.wait()


class _Crew:
    """The workers, the tasks that nobody has, and those that another runner holds."""

    def __init__(self, tasks: Sequence[Task], order: Order) -> None:
        self.order, self.fresh, self.held = order, deque(tasks), list[Task]()
        self.workers: dict[int, _Worker] = {}
        self.deaths: Counter[str] = Counter()
        self.looked = 0.0

    def events(self) -> Iterator[TaskEvent]:
        while self.fresh or self.held or any(worker.task for worker in self.workers.values()):
            if time.monotonic() >= self.order.deadline:
                yield from (
                    Broke(task, "the time is up; the same command begins it", later=True)
                    for task in (*self.fresh, *self.held)
                )
                self.fresh.clear()
                self.held.clear()
            self._assign()
            busy = {worker.connection: number for number, worker in self.workers.items() if worker.task}
            if not busy:
                time.sleep(PAUSE if self.held else 0)
            for connection in wait(list(busy), PAUSE) if busy else ():
                yield from self._hear(busy[connection])  # type: ignore[index]

    def leave(self) -> None:
        for worker in self.workers.values():
            worker.connection.close()  # all at once, then one after the other
        for worker in self.workers.values():
            worker.leave()

    def _assign(self) -> None:
        for number in range(self.order.workers):
            worker = self.workers.get(number)
            if worker is not None and worker.task:
                continue
            task = self._next()
            if task is None:
                return
            if worker is None:
                worker = self.workers[number] = _Worker(replace(self.order, name=f"worker {number + 1}"))
            worker.give(task)

    def _next(self) -> Task | None:
        """A task that no other runner has; now and then those that one had are looked at again."""
        if self.held and time.monotonic() - self.looked >= PAUSE:
            self.looked = time.monotonic()
            self.fresh.extend(self.held)
            self.held.clear()
        while self.fresh:
            task = self.fresh.popleft()
            if not RunFolder(Path(self.order.out) / task.id).held():
                return task
            self.held.append(task)
        return None

    def _hear(self, number: int) -> Iterator[TaskEvent]:
        worker = self.workers[number]
        task = worker.task
        assert task is not None
        try:
            event: TaskEvent | Held = worker.connection.recv()
        except (EOFError, OSError):
            yield from self._replace(number, task)
            return
        if isinstance(event, Ended | Broke | Held):
            worker.task = None
        if isinstance(event, Trained):
            self.deaths[task.id] = 0
        if isinstance(event, Held):
            self.held.append(task)
        else:
            yield event

    def _replace(self, number: int, task: Task) -> Iterator[TaskEvent]:
        """A worker died with its task."""
        how = self.workers.pop(number).bury()
        self.deaths[task.id] += 1
        if self.deaths[task.id] < TRIES:
            self.fresh.appendleft(task)
        else:
            yield Broke(task, f"its process died {TRIES} times and got no further; the last time by {how}")
