"""File locks (flock). The operating system releases the locks of a dead process, also after SIGKILL."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

RETRY_SECONDS = 0.02


def acquire(file: IO[str] | int, *, shared: bool = False, wait: bool = True) -> bool:
    """Locks an open file. Returns False if `wait` is False and a conflicting lock is held."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(file: IO[str] | int) -> None:
    """Unlocks an open file."""
    fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Holds the lock exclusively inside the block. Waits for the lock without timeout."""
    with open(path, "a+") as file:
        acquire(file)
        yield


@contextmanager
def try_hold(path: Path) -> Iterator[bool]:
    """Holds the lock exclusively and yields True, or yields False if another process holds it exclusively.

    Waits while shared locks are held, because `is_held` holds one for an instant.
    """
    with open(path, "a+") as file:
        yield _acquire_from_readers(file)


def is_held(path: str | Path) -> bool:
    """True if a process holds the lock exclusively. Raises FileNotFoundError if the file does not exist."""
    with open(path) as file:
        return not acquire(file, shared=True, wait=False)


def _acquire_from_readers(file: IO[str]) -> bool:
    while not acquire(file, wait=False):
        if not acquire(file, shared=True, wait=False):
            return False
        release(file)
        time.sleep(RETRY_SECONDS)
    return True
