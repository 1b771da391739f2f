"""The console of the commands, and checks of the files that commands write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from favorit.charts.save import checked_format
from favorit.display import SafeConsole
from favorit.errors import FavoritError

PIPED_WIDTH = 200


def open_console(stderr: bool = False) -> SafeConsole:
    """A console. Piped output is `PIPED_WIDTH` columns wide, so that tables are not cut."""
    console = SafeConsole(stderr=stderr, highlight=False)
    return console if console.is_terminal else SafeConsole(stderr=stderr, highlight=False, width=PIPED_WIDTH)


def check_outputs(**files: Path | None) -> None:
    """Raises an error for a file that cannot be written. Call it before the work."""
    for option, file in files.items():
        if file is None:
            continue
        with _named(option, file):
            if not file.parent.is_dir():
                raise FavoritError(f"--{option} {file}: the folder {file.parent} does not exist: create it first")
            if file.is_dir() or not file.suffix:
                raise FavoritError(f"--{option} {file}: give a file name with a suffix, such as .csv or .png")
            _try_to_write(file.parent, file.name)


def check_folders(**folders: Path | None) -> None:
    """Raises an error for a folder that cannot be created or written. Call it before the work."""
    for option, folder in folders.items():
        if folder is None:
            continue
        with _named(option, folder):
            existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
            if not existing.is_dir():
                raise FavoritError(f"--{option} {folder}: {existing} is a file: give a folder")
            _try_to_write(existing, folder.name)


def _try_to_write(folder: Path, name: str) -> None:
    """Creates and removes a file in the folder. Permissions alone do not tell: the file system may be read-only."""
    with TemporaryFile(dir=folder, prefix="."):
        pass
    (folder / f".{name}.{os.getpid()}").exists()  # raises an error if the name is too long


@contextmanager
def _named(option: str, path: Path) -> Iterator[None]:
    """Errors of the system become a mistake in an option."""
    try:
        yield
    except OSError as error:
        raise FavoritError(f"--{option} {path} cannot be written: {error.strerror}: choose another place") from None


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
