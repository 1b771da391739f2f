"""The console of the commands, and checks of the files that commands write."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from favorit.charts.save import checked_format
from favorit.errors import FavoritError

PIPED_WIDTH = 200


def open_console(stderr: bool = False) -> Console:
    """A console. Piped output is `PIPED_WIDTH` columns wide, so that tables are not cut."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=PIPED_WIDTH)


def check_outputs(**files: Path | None) -> None:
    """Raises an error if the folder of a file does not exist, or its name has no suffix. Call it before the work."""
    for option, file in files.items():
        if file is None:
            continue
        if not file.parent.is_dir():
            raise FavoritError(f"--{option} {file}: the folder {file.parent} does not exist: create it first")
        if file.is_dir() or not file.suffix:
            raise FavoritError(f"--{option} {file}: give a file name with a suffix, such as .csv or .png")


def check_figures(**files: Path | None) -> None:
    """As `check_outputs`. Also raises an error if the suffix is not that of a format of charts."""
    check_outputs(**files)
    for option, file in files.items():
        if file is None:
            continue
        try:
            checked_format(file)
        except FavoritError as error:
            raise FavoritError(f"--{option} {error}") from None
