"""Where the commands write: tables as wide as they are where nobody looks at a screen, and as wide as the screen where somebody does."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 200


def open_console(stderr: bool = False) -> Console:
    """A console; a pipe or a file has no width of its own, and nothing is cut there."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=WIDE)


def open_table(title: str | None = None, **columns: str) -> Table:
    """An empty table: names of columns (underscores are spaces) and `left` or `right` for each."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, justify in columns.items():
        table.add_column(name.replace("_", " "), justify="right" if justify == "right" else "left", overflow="fold")
    return table


def print_table(console: Console, table: Table, optional: Sequence[str] = ()) -> None:
    """Prints a table whose first column and numbers are never folded: a number in two halves is none, nor is an identifier.

    Where the screen is too narrow for them the `optional` columns go, the first ones first, and a line says so.
    """
    left_out, unlimited = [], console.options.update(max_width=10 * WIDE)
    for place, column in enumerate(table.columns):
        if place == 0 or column.justify == "right":
            column.no_wrap, column.min_width = True, max(len(str(cell)) for cell in (column.header, *column.cells))
    for title in optional:
        if console.measure(table, options=unlimited).minimum <= console.width:
            break
        left_out += [title]
        table.columns = [column for column in table.columns if column.header != title]
    console.print(table, markup=False)
    if left_out:
        console.print(f"not shown on {console.width} columns: {', '.join(left_out)}", soft_wrap=True, markup=False)
