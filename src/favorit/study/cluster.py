"""A study on several machines through Ray: every task is a Ray task, and Ray places it.

The driver alone claims runs and writes them: it holds the lock of a run while its task is under way, sends what is
known of it to a node, and lays down in `out`/<id> what comes back. A task whose node or worker dies is sent out again
from there, as a new driver would.
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

from favorit.errors import FavoritError, positive
from favorit.process import worker_settings
from favorit.study.join import joined, name_of, needs, slots
from favorit.study.local import TRIES
from favorit.study.node import Failed, Order, Word, work
from favorit.study.source import Source, said
from favorit.study.tasks import Began, Broke, Ended, Task, TaskEvent, Trained
from favorit.study.travel import lay_down, pack
from favorit.training.events import Begin, End, Epoch
from favorit.training.folder import HeldError, RunFolder

AHEAD = 2  # tasks that wait in Ray, so that a free slot is filled at once and an autoscaler sees them
PAUSE = 1.0  # seconds between two looks at what Ray does not tell
LEAVE = 5.0  # seconds that cancelled tasks have to tidy up in
LATER = "the time is up; the same command goes on"


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
    source: Source | None = None,
) -> Generator[TaskEvent, None, None]:
    """Trains tasks on the Ray cluster at `address`: HOST:PORT, `auto` (the one that this machine belongs to), or
    `local` (one of its own).

    Each run takes `cpus` CPUs, which is also its number of threads, and `gpus` GPUs: one where the cluster has any and
    the accelerator may use it, unless given. After `hours` no run is begun, and those under way stop at their next
    checkpoint. `source` is the file of the study, which is sent along and imported there.
    """
    positive(cpus=cpus)
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus % 1)):
        raise FavoritError(f"gpus={gpus:g} is not valid: a whole number, or a part of one such as 0.5")
    deadline = float("inf") if hours is None else time.monotonic() + 3600 * hours
    with joined(address) as ray:
        order = Order(
            out=str(out),
            folder=os.getcwd(),
            data_dir=None if data_dir is None else str(Path(data_dir).absolute()),
            accelerator=accelerator,
            wanted=needs(ray, cpus, gpus, accelerator),
            checkpoint_seconds=checkpoint_seconds,
            source=source,
        )
        driver = _Driver(ray, tasks, Path(out), order, deadline)
        try:
            yield from driver.events()
        finally:
            driver.leave()


@dataclass
class _Claim:
    """A run that this driver holds, whether a node has begun it, and how often one died since there was last something
    new.
    """

    task: Task
    folder: RunFolder
    lock: ExitStack
    begun: bool = False
    deaths: int = 0


class _Driver:
    """The tasks that are left, and the streams of words of those that Ray has."""

    def __init__(self, ray: Any, tasks: Sequence[Task], out: Path, order: Order, deadline: float) -> None:
        self.ray, self.out, self.order, self.deadline = ray, out, order, deadline
        self.work = ray.remote(
            num_cpus=order.wanted["CPU"],
            num_gpus=order.wanted.get("GPU", 0),
            num_returns="streaming",
            max_retries=0,  # Ray would begin with what was known at the start: deaths are handled here
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": worker_settings()},
        )(work)
        self.fresh, self.held = deque(tasks), list[Task]()
        self.running: dict[Any, _Claim] = {}
        self.again = 0.0

    def events(self) -> Iterator[TaskEvent]:
        while self.fresh or self.held or self.running:
            yield from self._claim() if time.monotonic() < self.deadline else self._put_off()
            if self.running:
                self.ray.wait(list(self.running), num_returns=1, timeout=PAUSE)
                ready, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
                for stream in ready:
                    yield from self._hear(stream)
            elif self.held:
                time.sleep(PAUSE)

    def leave(self) -> None:
        """Cancels what is under way, of which what has travelled is kept."""
        with suppress(Exception):  # the cluster may be gone
            for stream in self.running:
                self.ray.cancel(stream)
            if self.running:
                self.ray.wait(
                    [stream.completed() for stream in self.running], num_returns=len(self.running), timeout=LEAVE
                )
        for claim in self.running.values():
            claim.lock.close()

    def _put_off(self) -> Iterator[TaskEvent]:
        """What no node has begun is for another time."""
        for stream in [stream for stream, claim in self.running.items() if not claim.begun]:
            yield self._stop(stream)
        yield from (Broke(task, LATER, later=True) for task in (*self.fresh, *self.held))
        self.fresh.clear()
        self.held.clear()

    def _stop(self, stream: Any) -> TaskEvent:
        self.ray.cancel(stream)
        return self._end(stream, Broke(self.running[stream].task, LATER, later=True))

    def _claim(self) -> Iterator[TaskEvent]:
        """Sends out tasks that nobody holds until Ray has enough of them."""
        room = slots(self.ray, self.order.wanted) + AHEAD
        while len(self.running) < room and (task := self._next()) is not None:
            claim = _Claim(task, RunFolder(self.out / task.id), ExitStack())
            try:
                claim.lock.enter_context(claim.folder.lock())
                result = claim.folder.result()
            except HeldError:
                self.held.append(task)
                continue
            except FavoritError as error:
                claim.lock.close()
                yield Broke(task, str(error))
                continue
            if result is None or result["status"] == "pruned":
                self._send(claim)
                continue
            if result["status"] == "complete":
                claim.folder.tidy()
            claim.lock.close()
            if result["status"] == "failed":
                yield Broke(task, str(claim.folder.failed_before(result)))
            else:
                yield Ended(task, result, elsewhere=True)

    def _next(self) -> Task | None:
        """A task not tried yet; now and then those that another runner held and let go."""
        if self.held and time.monotonic() >= self.again:
            self.again = time.monotonic() + PAUSE
            tried, self.held = self.held, []
            for task in tried:
                (self.held if RunFolder(self.out / task.id).held() else self.fresh).append(task)
        return self.fresh.popleft() if self.fresh else None

    def _send(self, claim: _Claim) -> None:
        self.running[self.work.remote(claim.task, pack(claim.folder), self.order)] = claim

    def _hear(self, stream: Any) -> Iterator[TaskEvent]:
        """The next word of a task, or the news of its death."""
        from ray.exceptions import RayError, RayTaskError

        claim = self.running[stream]
        try:
            word: Word = self.ray.get(next(stream))
            if word.contents:
                lay_down(word.contents, claim.folder)
                claim.deaths = 0
        except FavoritError as error:
            self.ray.cancel(stream)
            yield self._end(stream, Broke(claim.task, str(error)))
        except RayTaskError as error:  # what a task cannot say itself, such as that favorit is not installed there
            yield self._end(stream, Broke(claim.task, f"a node cannot train: {said(error.cause)}"[:500]))
        except (RayError, StopIteration) as error:
            yield from self._bury(stream, said(error)[:500])
        else:
            yield from self._tell(stream, word)

    def _tell(self, stream: Any, word: Word) -> Iterator[TaskEvent]:
        claim, event = self.running[stream], word.event
        if isinstance(event, Begin):
            claim.begun = True
            yield Began(claim.task, event.step, name_of(self.ray, word.node))
        elif isinstance(event, End):
            yield self._end(stream, Ended(claim.task, claim.folder.result() or {}))
        elif isinstance(event, Failed):
            yield self._end(stream, Broke(claim.task, f"on {name_of(self.ray, word.node)}: {event.error}"))
        else:
            if isinstance(event, Epoch):
                yield Trained(claim.task, asdict(event))
            if time.monotonic() >= self.deadline:
                yield self._stop(stream)

    def _bury(self, stream: Any, reason: str) -> Iterator[TaskEvent]:
        """Sends a task out again whose worker or node is gone, unless that does not help."""
        claim = self.running[stream]
        claim.deaths += 1
        if claim.deaths == TRIES:
            yield self._end(
                stream,
                Broke(claim.task, f"its worker died {TRIES} times and got no further; the last time by {reason}"),
            )
            return
        self.ray.cancel(stream, force=True)  # where only what it said was lost, it is still there
        del self.running[stream]
        claim.begun = False
        self._send(claim)

    def _end(self, stream: Any, verdict: TaskEvent) -> TaskEvent:
        self.running.pop(stream).lock.close()
        return verdict
