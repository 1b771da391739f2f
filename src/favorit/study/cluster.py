"""Cluster backend: trains a study on several machines with Ray. Every run is a Ray task.

Only the driver locks and writes runs. It holds the lock of a run while its task is running, sends the run's files to a
node, and writes the files that the node returns to `out`/<id>. If a node or worker dies, the driver submits the task
again with these files.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from favorit.errors import FavoritError, check_positive
from favorit.process import worker_settings
from favorit.source import Source, error_line
from favorit.study.join import cluster_slots, joined, node_name, resources
from favorit.study.local import TRIES
from favorit.study.node import Failed, Message, Order, work
from favorit.study.tasks import Began, Ended, EpochDone, Task, TaskEvent, Unfinished
from favorit.study.transfer import read_contents, write_contents
from favorit.training.events import Begin, End, Epoch
from favorit.training.folder import HeldError, RunFolder

AHEAD = 2  # tasks queued in Ray, so that a free slot is filled at once and an autoscaler sees demand
POLL = 1.0  # seconds between two checks of the deadline and of runs that other processes hold
GRACE = 5.0  # seconds that cancelled tasks have for their cleanup
TIME_IS_UP = "the time is up; rerun the same command to resume"


def cluster(
    tasks: Sequence[Task],
    out: str | Path,
    *,
    address: str,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
    cpus: int = 1,
    gpus: float | None = None,
    hours: float | None = None,
    checkpoint_seconds: float = 60.0,
    sources: tuple[Source, ...] = (),
) -> Generator[TaskEvent, None, None]:
    """Trains tasks on the Ray cluster at `address`: HOST:PORT, `auto` (the cluster of this machine), or `local` (a
    private one on this machine).

    Each run uses `cpus` CPUs and as many threads, and `gpus` GPUs (default: one if the cluster has any and the
    accelerator may use it). After `hours` hours no run starts, and running ones stop at their next checkpoint.
    The files `sources` are sent to the nodes and imported there.
    """
    check_positive(cpus=cpus)
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus % 1)):
        raise FavoritError(f"gpus={gpus:g} is not valid: write an integer, or a fraction below 1 such as 0.5")
    deadline = float("inf") if hours is None else time.monotonic() + 3600 * hours
    with joined(address) as ray:
        order = Order(
            out=str(out),
            folder=os.getcwd(),
            data_dir=None if data_dir is None else str(Path(data_dir).absolute()),
            accelerator=accelerator,
            wanted=resources(ray, cpus, gpus, accelerator),
            checkpoint_seconds=checkpoint_seconds,
            sources=sources,
        )
        driver = _Driver(ray, tasks, Path(out), order, deadline)
        try:
            yield from driver.events()
        finally:
            driver.stop()


@dataclass
class _Claim:
    """A run whose lock this driver holds. `started` is true once a node trains it. `deaths` counts the deaths of its
    workers since files last arrived.
    """

    task: Task
    folder: RunFolder
    lock: ExitStack
    started: bool = False
    deaths: int = 0


class _Driver:
    """Trains tasks in Ray. An unfinished task is `pending`, `held` (another runner trains it), or `running` in Ray.
    `running` maps streams of messages to runs.
    """

    def __init__(self, ray: Any, tasks: Sequence[Task], out: Path, order: Order, deadline: float) -> None:
        self.ray, self.out, self.order, self.deadline = ray, out, order, deadline
        self.work = ray.remote(
            num_cpus=order.wanted["CPU"],
            num_gpus=order.wanted.get("GPU", 0),
            num_returns="streaming",
            max_retries=0,  # a retry by Ray would start from the initial files: the driver resubmits instead
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": worker_settings()},
        )(work)
        self.pending = deque(tasks)
        self.held: list[Task] = []
        self.running: dict[Any, _Claim] = {}
        self.next_check = 0.0

    def events(self) -> Iterator[TaskEvent]:
        while self.pending or self.held or self.running:
            yield from self._claim() if time.monotonic() < self.deadline else self._postpone()
            if self.running:
                self.ray.wait(list(self.running), num_returns=1, timeout=POLL)
                ready, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
                for stream in ready:
                    yield from self._receive(stream)
            elif self.held:
                time.sleep(POLL)

    def stop(self) -> None:
        """Cancels running tasks; the files received so far are kept."""
        with suppress(Exception):  # the cluster may be gone
            for stream in self.running:
                self.ray.cancel(stream)
            if self.running:
                self.ray.wait(
                    [stream.completed() for stream in self.running], num_returns=len(self.running), timeout=GRACE
                )
        for claim in self.running.values():
            claim.lock.close()

    def _postpone(self) -> Iterator[TaskEvent]:
        """Postpones all tasks that no node has started."""
        for stream in [stream for stream, claim in self.running.items() if not claim.started]:
            yield self._stop(stream)
        yield from (Unfinished(task, TIME_IS_UP, later=True) for task in (*self.pending, *self.held))
        self.pending.clear()
        self.held.clear()

    def _stop(self, stream: Any) -> TaskEvent:
        self.ray.cancel(stream)
        return self._end(stream, Unfinished(self.running[stream].task, TIME_IS_UP, later=True))

    def _claim(self) -> Iterator[TaskEvent]:
        """Submits tasks whose run is free, until Ray has AHEAD more of them than slots."""
        limit = cluster_slots(self.ray, self.order.wanted) + AHEAD
        while len(self.running) < limit and (task := self._next()) is not None:
            claim = _Claim(task, RunFolder(self.out / task.id), ExitStack())
            try:
                claim.lock.enter_context(claim.folder.lock())
                result = claim.folder.result()
            except HeldError:
                self.held.append(task)
                continue
            except FavoritError as error:
                claim.lock.close()
                yield Unfinished(task, str(error))
                continue
            if result is None or result["status"] == "pruned":
                self._submit(claim)
                continue
            if result["status"] == "complete":
                claim.folder.tidy()
            claim.lock.close()
            if result["status"] == "failed":
                yield Unfinished(task, str(claim.folder.failed_before(result)))
            else:
                yield Ended(task, result, elsewhere=True)

    def _next(self) -> Task | None:
        """The next pending task, or None; checks every POLL seconds whether other runners have released held ones."""
        if self.held and time.monotonic() >= self.next_check:
            self.next_check = time.monotonic() + POLL
            tasks = self.held
            self.held = []
            for task in tasks:
                (self.held if RunFolder(self.out / task.id).held() else self.pending).append(task)
        return self.pending.popleft() if self.pending else None

    def _submit(self, claim: _Claim) -> None:
        self.running[self.work.remote(claim.task, read_contents(claim.folder), self.order)] = claim

    def _receive(self, stream: Any) -> Iterator[TaskEvent]:
        """Handles the next message of a task, or the death of its worker."""
        from ray.exceptions import RayError, RayTaskError

        claim = self.running[stream]
        try:
            message: Message = self.ray.get(next(stream))
            if message.contents:
                write_contents(message.contents, claim.folder)
                claim.deaths = 0
        except FavoritError as error:
            self.ray.cancel(stream)
            yield self._end(stream, Unfinished(claim.task, str(error)))
        except RayTaskError as error:  # raised outside of `work`, for example if favorit is not installed there
            yield self._end(stream, Unfinished(claim.task, f"a node cannot train: {error_line(error.cause)}"[:500]))
        except (RayError, StopIteration) as error:
            yield from self._resubmit(stream, error_line(error)[:500])
        else:
            yield from self._report(stream, message)

    def _report(self, stream: Any, message: Message) -> Iterator[TaskEvent]:
        claim = self.running[stream]
        event = message.event
        if isinstance(event, Begin):
            claim.started = True
            yield Began(claim.task, event.step, node_name(self.ray, message.node))
        elif isinstance(event, End):
            yield self._end(stream, Ended(claim.task, claim.folder.result() or {}))
        elif isinstance(event, Failed):
            yield self._end(stream, Unfinished(claim.task, f"on {node_name(self.ray, message.node)}: {event.error}"))
        else:
            if isinstance(event, Epoch):
                yield EpochDone(claim.task, asdict(event))
            if time.monotonic() >= self.deadline:
                yield self._stop(stream)

    def _resubmit(self, stream: Any, reason: str) -> Iterator[TaskEvent]:
        """Submits a task again after its worker or node died; the task fails after TRIES deaths."""
        claim = self.running[stream]
        claim.deaths += 1
        if claim.deaths == TRIES:
            yield self._end(
                stream,
                Unfinished(claim.task, f"its worker died {TRIES} times without progress; the last time: {reason}"),
            )
            return
        self.ray.cancel(stream, force=True)  # the worker may be alive, and only its message lost
        del self.running[stream]
        claim.started = False
        self._submit(claim)

    def _end(self, stream: Any, event: TaskEvent) -> TaskEvent:
        self.running.pop(stream).lock.close()
        return event
