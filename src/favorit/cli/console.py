"""Where the commands write: tables as wide as they are where nobody looks at a screen, and as wide as the screen where somebody does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def open_table(title: str | None = None, **columns: str) -> Table:
    """An empty table: names of columns (underscores are spaces) and `left` or `right` for each."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, justify in columns.items():
        table.add_column(name.replace("_", " "), justify="right" if justify == "right" else "left", overflow="fold")
    return table


def print_columns(console: Console, rows: Sequence[Mapping[str, str]], optional: Sequence[str] = ()) -> None:
    """Prints rows of cells by title, words on the left and numbers on the right; the first column and numbers are never folded.

    A number in two halves is none, nor is an identifier: where the screen is too narrow the `optional` columns go, the first ones first,
    and a line says so.
    """
    unlimited = console.options.update(max_width=10 * WIDE)
    for count in range(len(optional) + 1):
        left_out = optional[:count]
        table = _columns(rows, left_out)
        if console.measure(table, options=unlimited).minimum <= console.width:
            break
    console.print(table, markup=False)
    if left_out:
        console.print(f"not shown on {console.width} columns: {', '.join(left_out)}", soft_wrap=True, markup=False)


def _columns(rows: Sequence[Mapping[str, str]], left_out: Sequence[str]) -> Table:
    first, *others = [title for title in rows[0] if title not in left_out]
    table = open_table(**{first: "left"}, **dict.fromkeys(others, "right"))
    for column, title in zip(table.columns, (first, *others), strict=True):
        column.no_wrap, column.min_width = True, max(len(text) for text in (title, *(row.get(title, "") for row in rows)))
    for row in rows:
        table.add_row(*(row.get(title, "") for title in (first, *others)))
    return table
