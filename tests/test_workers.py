"""The pool of worker processes: messages, crashes, and the end of workers with their parent or their pool."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from favorit import FavoritError, workers
from favorit.workers import Exit, Parent, WorkerPool
from training_helpers import PATIENCE, finish, start

# A script that registers a kernel. Its workers import the script, so the kernel is registered there too.
SCRIPT = """
from favorit import RunConfig
from favorit.attention.kernels.pointwise import pointwise
from favorit.tuning import tune

@pointwise
def own(x):
    return 1 + x / (1 + x.abs())

BASE = RunConfig(
    model=dict(stem="patch(4)", dim=8, heads=2, depth=1, mlp_dim=8),
    data=dict(name="synthetic(size=8, classes=3, train=96, test=48)", validation=0.25),
    train=dict(epochs=1),
)

def main():
    result = tune({"model.layout": "choice(own, softmax)"}, BASE, out=__file__ + ".runs", name="own", workers=2,
                  sampler="grid", accelerator="cpu")
    print([trial.state for trial in result.trials])

"""


def add(parent: Parent, first: int) -> None:
    while True:
        parent.send(first + parent.receive())


def fail(parent: Parent) -> None:
    sys.stderr.write("a warning\n")
    raise FavoritError("bad input")


def end_well(parent: Parent) -> None:
    parent.send("the last message")


def die(parent: Parent) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(parent: Parent) -> None:
    os._exit = lambda status: None  # type: ignore[assignment]
    parent.send(os.getpid())
    time.sleep(PATIENCE)


def send_pid(parent: Parent) -> None:
    parent.send(os.getpid())
    time.sleep(PATIENCE)


def nest(parent: Parent) -> None:
    with WorkerPool(threads=1) as pool:
        pool.start(add, 1)


@pytest.fixture(autouse=True)
def tests_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets workers import this module."""
    folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(threads=1) as pool:
        yield pool


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_worker_replies_in_the_order_of_messages(pool: WorkerPool):
    worker = pool.start(add, 1)
    for number in range(3):
        worker.send(number)
    assert [worker.receive() for _ in range(3)] == [1, 2, 3]
    assert list(pool.messages(0.0)) == []


def test_exit_comes_after_the_last_message(pool: WorkerPool):
    worker = pool.start(end_well)
    assert list(pool.messages()) == [(worker, "the last message")]
    assert list(pool.messages()) == [(worker, Exit(0, ""))]
    assert pool.workers == []


@pytest.mark.parametrize(
    ("target", "report"),
    [(fail, "exit status 1: favorit.errors.FavoritError: bad input"), (die, f"signal {int(signal.SIGKILL)}")],
)
def test_crash_is_reported_with_the_last_line_of_stderr(pool: WorkerPool, target, report):
    worker = pool.start(target)
    ((sender, end),) = pool.messages()
    assert sender is worker
    assert str(end) == report
    worker.send("to a dead process")  # no error: its Exit was the last message
    assert pool.workers == []


def test_traceback_of_a_crash_is_kept(pool: WorkerPool):
    end = pool.start(fail).receive()
    assert end.stderr.startswith("a warning\nTraceback")


def test_hanging_worker_is_killed_when_its_pool_closes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "GRACE", 0.1)
    with WorkerPool(threads=1) as pool:
        process = pool.start(hang).receive()
        assert is_running(process)
    assert not is_running(process)


def test_worker_cannot_start_workers(pool: WorkerPool):
    assert "a worker process cannot start workers" in str(pool.start(nest).receive())


def test_worker_ends_when_its_parent_is_killed():
    parent = start(
        "-c",
        "import time, test_workers; from favorit.workers import WorkerPool; "
        "print(WorkerPool(threads=1).start(test_workers.send_pid).receive(), flush=True); time.sleep(600)",
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert is_running(worker)
    parent.kill()
    finish(parent)
    deadline = time.monotonic() + PATIENCE
    while is_running(worker):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_workers_of_a_script_know_its_components(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "if __name__ == '__main__':\n    main()\n")
    assert finish(start(script))[:2] == (0, "['complete', 'complete']\n")


def test_script_that_starts_workers_when_imported_is_rejected(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "main()\n")
    code, _, errors = finish(start(script))
    assert code == 1
    assert "a worker process cannot start workers: put the call" in errors.splitlines()[-1]
