"""One benchmark at a time, alone on its machine: study workers pause between two training steps while it measures.

Two files carry the locks. `gate`: a benchmark holds it exclusively, and workers test it after each step. `active`:
workers hold it shared while they compute, and a benchmark takes it exclusively once they have paused. A worker cannot
take `active` again while a benchmark has the gate, so any number of workers cannot starve a benchmark. The system
releases the locks of a process that dies.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from pathlib import Path

GATE, ACTIVE = "favorit-gate.lock", "favorit-active.lock"
SYSTEM = Path("/tmp")  # one folder for all users; TMPDIR differs between users and batch jobs


def lock_folder() -> Path:
    """The folder of the lock files: FAVORIT_LOCKS, else the system's folder for temporary files."""
    given = os.environ.get("FAVORIT_LOCKS")
    return Path(given) if given else SYSTEM if SYSTEM.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def training() -> Iterator[Callable[[], None]]:
    """Yields a function to call between two steps (1 microsecond): it returns once no benchmark is measuring.

    Where the lock files cannot be opened, training does not pause.
    """
    with ExitStack() as stack:
        try:
            gate, active = _open_both(stack)
            _start(gate, active)
        except OSError:
            yield lambda: None
            return

        def pause() -> None:
            if _try(gate, LOCK_SH):
                flock(gate, LOCK_UN)
            else:
                flock(active, LOCK_UN)
                _start(gate, active)

        yield pause


@contextmanager
def measuring(tell: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Waits until all workers have paused and no other benchmark runs, and keeps it so. `tell` receives what it waits
    for.
    """
    with ExitStack() as stack:
        try:
            gate, active = _open_both(stack)
            if not _try(gate, LOCK_EX):
                if not _try(gate, LOCK_SH):  # else only workers hold it, which release it at once
                    tell("waiting for another benchmark of this machine to end")
                flock(gate, LOCK_EX)
            if not _try(active, LOCK_EX):
                tell("waiting for the study workers of this machine to pause")
                flock(active, LOCK_EX)
        except OSError as error:
            tell(
                f"the study workers of this machine are not paused ({error.filename or lock_folder()}: {error.strerror})"
            )
        yield


def _start(gate: int, active: int) -> None:
    flock(gate, LOCK_SH)
    flock(active, LOCK_SH)
    flock(gate, LOCK_UN)


def _try(lock: int, kind: int) -> bool:
    """True if the lock is now held, without waiting."""
    try:
        flock(lock, kind | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_both(stack: ExitStack) -> tuple[int, int]:
    gate, active = (_open(lock_folder() / name, stack) for name in (GATE, ACTIVE))
    return gate, active


def _open(path: Path, stack: ExitStack) -> int:
    """A descriptor of a lock file that all users may open. What another user put there is neither followed nor
    changed.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        stack.callback(os.close, lock)
        os.fchmod(lock, 0o666)  # whatever the umask
    except FileExistsError:
        lock = os.open(path, flags)
        stack.callback(os.close, lock)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return lock
