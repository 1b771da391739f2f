"""What all benchmarks share: they are alone on the machine while they measure, and name load that is there
nevertheless.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from favorit.foreign_load import Watch


@contextmanager
def alone(console: Console) -> Iterator[Watch]:
    """Pauses the study workers of this machine during the block, then prints a note if other processes used its
    cores.
    """
    from favorit.foreign_load import Watch, watching
    from favorit.quiet import measuring

    if os.environ.get("LOCAL_RANK", "0") != "0":  # the process that started this one holds the locks
        yield Watch()
        return
    with measuring(lambda line: typer.echo(line, err=True)), watching() as watch:
        yield watch
    if watch.load is not None and watch.load.note is not None:
        console.print(watch.load.note, markup=False, soft_wrap=True)
