"""Benchmarks run alone on the machine: study workers pause between two training steps while a benchmark measures.

There are two lock files. A benchmark holds `gate` exclusively, and workers test it after each step. Workers hold
`active` shared while they compute, and a benchmark takes it exclusively once they have paused. Workers cannot take
`active` again while a benchmark holds `gate`, so a benchmark is never starved, however many workers run. The operating
system releases the locks of a process that dies.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from favorit.locks import acquire, release

GATE, ACTIVE = "favorit-gate.lock", "favorit-active.lock"
SHARED_FOLDER = Path("/tmp")  # the same for all users; TMPDIR differs between users and batch jobs


def lock_folder() -> Path:
    """The folder of the lock files: FAVORIT_LOCKS, or else /tmp, or else the system's temporary folder."""
    given = os.environ.get("FAVORIT_LOCKS")
    return Path(given) if given else SHARED_FOLDER if SHARED_FOLDER.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def training() -> Iterator[Callable[[], None]]:
    """Yields a function to call between two steps. It waits while a benchmark measures, else returns in 1 microsecond.

    If the lock files cannot be opened, training does not pause.
    """
    with ExitStack() as stack:
        try:
            gate, active = _open_both(stack)
            _enter(gate, active)
        except OSError:
            yield lambda: None
            return

        def pause() -> None:
            if acquire(gate, shared=True, wait=False):
                release(gate)
            else:
                release(active)
                _enter(gate, active)

        yield pause


@contextmanager
def measuring(report: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Waits until all workers have paused and no other benchmark runs. Inside the block, no worker trains.

    `report` receives a line that says what the benchmark waits for.
    """
    with ExitStack() as stack:
        try:
            gate, active = _open_both(stack)
            if not acquire(gate, wait=False):
                # If a shared lock can be acquired, only workers hold the gate, and they release it at once.
                if not acquire(gate, shared=True, wait=False):
                    report("waiting for another benchmark on this machine to finish")
                acquire(gate)
            if not acquire(active, wait=False):
                report("waiting for the study workers on this machine to pause")
                acquire(active)
        except OSError as error:
            reason = f"{error.filename or lock_folder()}: {error.strerror}"
            report(f"the study workers on this machine are not paused ({reason})")
        yield


def _enter(gate: int, active: int) -> None:
    """Waits for the gate, then marks this worker as computing."""
    acquire(gate, shared=True)
    acquire(active, shared=True)
    release(gate)


def _open_both(stack: ExitStack) -> tuple[int, int]:
    return _open(lock_folder() / GATE, stack), _open(lock_folder() / ACTIVE, stack)


def _open(path: Path, stack: ExitStack) -> int:
    """The descriptor of a lock file that all users may open.

    Links are not followed, and a file of another user is not changed.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        stack.callback(os.close, lock)
        os.fchmod(lock, 0o666)  # undoes the umask
    except FileExistsError:
        lock = os.open(path, flags)
        stack.callback(os.close, lock)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return lock
