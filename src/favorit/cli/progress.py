"""A bar for work that turns out to be long: nothing is shown of what is over in a moment, or where nobody looks at a
screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

PATIENCE = 2.0


@contextmanager
def long_work(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that is told how much is done and of how much; after two seconds a bar shows it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(what, total=None)
    begun = time.monotonic()

    def hear(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if console.is_terminal and not bar.live.is_started and time.monotonic() - begun > PATIENCE:
            bar.start()

    try:
        yield hear
    finally:
        if bar.live.is_started:
            bar.stop()
