"""The machine during a benchmark: study workers are paused, and load from other processes is noted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from favorit.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

    from favorit.foreign_load import LoadMonitor


@contextmanager
def reserve_machine(console: Console) -> Iterator[LoadMonitor]:
    """Pauses the study workers of this machine during the block.

    At the end, prints a note if other processes used cores of the machine.
    """
    from favorit.foreign_load import LoadMonitor, monitor_load
    from favorit.machine_lock import measuring

    if os.environ.get("LOCAL_RANK", "0") != "0":  # the first process holds the locks
        yield LoadMonitor()
        return
    with measuring(lambda line: echo(line, err=True)), monitor_load() as monitor:
        yield monitor
    if monitor.load is not None and monitor.load.note is not None:
        console.print(monitor.load.note, markup=False, soft_wrap=True)
