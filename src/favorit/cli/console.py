"""Where the commands write: tables as wide as they are where nobody looks at a screen, and as wide as the screen where
somebody does.
"""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from favorit.errors import FavoritError

WIDE = 200


def open_console(stderr: bool = False) -> Console:
    """A console; a pipe or a file has no width of its own, and nothing is cut there."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=WIDE)


def check_places(**places: Path | None) -> None:
    """An error for a file that cannot be written, before the work that it is to hold is done: option -> where."""
    for option, place in places.items():
        if place is None:
            continue
        if not place.parent.is_dir():
            raise FavoritError(f"--{option} {place}: there is no folder {place.parent}: make it first")
        if place.is_dir() or not place.suffix:
            raise FavoritError(f"--{option} {place}: give the name of a file with an ending, such as .csv or .png")


def check_pictures(**places: Path | None) -> None:
    """The same for pictures, whose ending says their format."""
    check_places(**places)
    for option, place in places.items():
        if place is None:
            continue
        from matplotlib.backend_bases import FigureCanvasBase

        if place.suffix.lower().removeprefix(".") not in FigureCanvasBase.filetypes:
            raise FavoritError(
                f"--{option} {place}: no picture of that ending can be drawn: give it .png, .svg or .pdf"
            )


def open_table(title: str | None = None, **columns: str) -> Table:
    """An empty table: names of columns (underscores are spaces) and `left` or `right` for each."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for name, justify in columns.items():
        table.add_column(name.replace("_", " "), justify="right" if justify == "right" else "left", overflow="fold")
    return table
