"""Plain columns for tables of any length: thousands of rows are written at once."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

import typer

NARROWEST = 12


def write_columns(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Writes rows under titles, those of `right` justified right. On a terminal the widest column is cut to fit; elsewhere nothing is."""
    table = [[str(title) for title in titles], *([" ".join(cell.split()) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if sys.stdout.isatty():
        over = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size().columns
        widest = widths.index(max(widths))
        widths[widest] = max(widths[widest] - max(over, 0), min(NARROWEST, widths[widest]))
    signs = [">" if title in set(right) else "<" for title in titles]
    template = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    lines = (template.format(*map(_cut, row, widths)).rstrip() for row in table)
    typer.echo("\n".join(lines))


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"
