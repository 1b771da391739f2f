"""Workers pause for benchmarks, resume when the benchmark ends or is killed, and train the same weights."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lightning_fabric  # noqa: F401  # imported before the timed run, not in it
import pytest

import favorit
from favorit import machine_lock
from favorit.data import load_dataset
from favorit.machine_lock import ACTIVE, GATE, measuring, training
from favorit.study.tasks import Began, Ended, Task, TaskEvent
from favorit.study.worker import Order, _attempt
from favorit.training.identity import resolve, run_id
from training_helpers import LIVELY, PATIENCE, Outcome, assert_bit_equal, tiny

HOLDER = """
import time
from favorit.machine_lock import measuring
with measuring():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of locks for this test alone."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv("FAVORIT_LOCKS", str(folder))
    return folder


class Worker(threading.Thread):
    """Runs short steps, and pauses between two steps for benchmarks."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.steps = 0
        self.done = threading.Event()

    def run(self) -> None:
        with training() as pause:
            while not self.done.is_set():
                time.sleep(0.001)
                self.steps += 1
                pause()


@contextmanager
def working() -> Iterator[Worker]:
    worker = Worker()
    worker.start()
    until(lambda: worker.steps > 2)
    try:
        yield worker
    finally:
        worker.done.set()
        worker.join(PATIENCE)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.002)


def test_benchmark_is_alone_among_three_workers_and_two_benchmarks() -> None:
    """Workers let a benchmark in between two steps and resume after it."""
    active: set[str] = set()
    measured: list[set[str]] = []
    steps: dict[str, int] = {}
    done = threading.Event()

    def train(name: str) -> None:
        with training() as pause:
            while not done.is_set():
                active.add(name)
                time.sleep(0.002)
                active.discard(name)
                steps[name] = steps.get(name, 0) + 1
                pause()

    def measure(name: str) -> None:
        for _ in range(5):
            with measuring():
                active.add(name)
                seen = set(active)
                time.sleep(0.004)
                measured.append(seen | active)
                active.discard(name)
            time.sleep(0.002)

    trainers = [threading.Thread(target=train, args=(f"train {number}",)) for number in range(3)]
    measurers = [threading.Thread(target=measure, args=(f"measure {number}",)) for number in range(2)]
    for thread in (*trainers, *measurers):
        thread.start()
    for thread in measurers:
        thread.join(30)
    between = dict(steps)
    time.sleep(0.1)
    done.set()
    for thread in trainers:
        thread.join(30)
    assert len(measured) == 10, "each benchmark measured five times"
    assert all(len(seen) == 1 for seen in measured), measured
    assert all(steps[name] > between[name] > 0 for name in between), "all workers resume"
    assert len(between) == 3


def test_worker_resumes_after_sigkill_of_a_benchmark() -> None:
    with (
        working() as worker,
        subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder,
    ):
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            paused = worker.steps
            time.sleep(0.1)
            assert worker.steps == paused
        finally:
            os.kill(holder.pid, signal.SIGKILL)
        until(lambda: worker.steps > paused)


def test_benchmark_reports_waiting_for_workers_to_pause() -> None:
    reported: list[str] = []
    with training() as pause:
        bench = threading.Thread(target=_measure, args=(reported,), daemon=True)
        bench.start()
        until(lambda: bool(reported))
        time.sleep(0.05)
        assert reported == ["waiting for the study workers on this machine to pause"]
        pause()  # returns after the benchmark
        assert reported[1:] == ["measured"]
    bench.join(PATIENCE)


def test_second_benchmark_reports_waiting_for_the_first() -> None:
    reported: list[str] = []
    with measuring():
        bench = threading.Thread(target=_measure, args=(reported,), daemon=True)
        bench.start()
        until(lambda: bool(reported))
        time.sleep(0.05)
        assert reported == ["waiting for another benchmark on this machine to finish"]
    bench.join(PATIENCE)
    assert reported[1:] == ["measured"]


def test_benchmark_without_workers_reports_nothing() -> None:
    reported: list[str] = []
    _measure(reported)
    assert reported == ["measured"]


def _measure(reported: list[str]) -> None:
    with measuring(reported.append):
        reported.append("measured")


def test_paused_run_is_bit_equal_and_its_times_exclude_the_pause(tmp_path: Path) -> None:
    """The pause is longer than the training, so a time that includes it would show."""
    config = tiny(**LIVELY)
    data = load_dataset(config.data.name)
    task = Task("point", config, run_id(resolve(config, data), data.digest))
    waiting = threading.Event()
    pauses: list[float] = []
    length = 1.0

    def hold() -> None:
        with measuring(lambda line: waiting.set()):
            start = time.monotonic()
            time.sleep(length)
            pauses.append(time.monotonic() - start)

    bench = threading.Thread(target=hold, daemon=True)

    def on_event(event: TaskEvent) -> None:
        if isinstance(event, Began):
            bench.start()
            assert waiting.wait(PATIENCE)

    order = Order("worker 1", str(tmp_path / "paused"), None, "cpu", 60.0, workers=1, threads=1, deadline=float("inf"))
    start = time.monotonic()
    ended = _attempt(task, order, load_dataset, on_event)
    wall = time.monotonic() - start
    assert len(pauses) == 1, "the pause is within the run"
    bench.join(PATIENCE)
    assert isinstance(ended, Ended)
    run = favorit.Run(tmp_path / "paused" / task.id)
    assert sum(epoch["train_seconds"] + epoch["validation_seconds"] for epoch in run.epochs) <= wall - length
    alone = favorit.train(config, out=tmp_path / "alone", accelerator="cpu")
    assert_bit_equal(Outcome.of(run), Outcome.of(alone))


def test_pause_without_a_benchmark_takes_microseconds() -> None:
    def seconds() -> float:
        start = time.thread_time()
        for _ in range(1000):
            pause()
        return (time.thread_time() - start) / 1000

    with training() as pause:
        assert min(seconds() for _ in range(5)) < 50e-6


def test_lock_files_are_open_to_all_users_under_any_umask(locks: Path) -> None:
    before = os.umask(0o077)
    try:
        with measuring():
            pass
    finally:
        os.umask(before)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in locks.iterdir()} == {GATE: 0o666, ACTIVE: 0o666}


def test_existing_lock_file_keeps_its_content(locks: Path) -> None:
    (locks / GATE).write_text("another user's")
    with measuring(), pytest.raises(BlockingIOError):
        _lock_without_waiting(locks / GATE)
    assert (locks / GATE).read_text() == "another user's"


def _lock_without_waiting(path: Path) -> None:
    import fcntl

    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "absent"])
def test_unusable_lock_file_stops_neither_workers_nor_benchmarks(
    kind: str, locks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "link":
        (tmp_path / "target").write_text("kept")
        (locks / GATE).symlink_to(tmp_path / "target")
    elif kind == "pipe":
        os.mkfifo(locks / GATE)
    elif kind == "folder":
        (locks / GATE).mkdir()
    else:
        monkeypatch.setenv("FAVORIT_LOCKS", str(tmp_path / "absent"))
    reported: list[str] = []
    with training() as pause:
        pause()
    _measure(reported)
    assert len(reported) == 2
    assert reported[0].startswith(f"the study workers on this machine are not paused ({machine_lock.lock_folder()}")
    assert "\n" not in reported[0]


def test_lock_folder_does_not_depend_on_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAVORIT_LOCKS")
    monkeypatch.setenv("TMPDIR", "/nowhere")
    assert machine_lock.lock_folder() == machine_lock.SHARED_FOLDER
