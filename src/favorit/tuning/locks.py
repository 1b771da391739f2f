"""Locks that the system releases when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def hold(path: Path) -> Iterator[IO[str]]:
    """Waits for the lock and holds it."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def is_held(path: Path) -> bool:
    """Whether some process holds the lock exclusively; FileNotFoundError where there is none, and none is made."""
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
