"""Locks that the system releases when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def hold(path: Path, *, shared: bool = False) -> Iterator[IO[str]]:
    """Waits for the lock and holds it."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield file


def is_held(path: Path) -> bool:
    """Whether some process holds the lock exclusively; FileNotFoundError where there is none, and none is made."""
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Quiet:
    """Who measures is alone: nobody in the same folder trains or measures meanwhile.

    Whoever trains holds `room` in common; whoever measures closes `gate`, at which all who train stop between two steps, and then has the
    room for itself. So a trial is measured as soon as it is trained, and the sampler can go by it; at the end of a study it could not.
    """

    def __init__(self, folder: Path) -> None:
        self._gate, self._room = folder / "gate", folder / "room"

    @contextmanager
    def training(self) -> Iterator[Callable[[], None]]:
        """Yields what is to be called between two steps: it lets a measurement pass."""
        with open(self._room, "a+") as mine:
            self._enter(mine)

            def breathe() -> None:
                if is_held(self._gate):
                    fcntl.flock(mine, fcntl.LOCK_UN)
                    self._enter(mine)

            yield breathe

    def _enter(self, mine: IO[str]) -> None:
        with hold(self._gate, shared=True):
            fcntl.flock(mine, fcntl.LOCK_SH)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        with hold(self._gate), hold(self._room):
            yield
