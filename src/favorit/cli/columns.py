"""Plain columns for tables of any length: thousands of rows are written at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

import typer

NARROWEST = 12
USUAL = 80
INDENT = "  "


def write_columns(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    optional: Sequence[str] = (),
    heading: str | None = None,
    sections: Sequence[str] | None = None,
    err: bool = False,
) -> None:
    """Writes rows under titles, those of `right` justified right. `sections` has a line for each row, written where it
    changes.

    On a terminal the widest column of words is cut to fit, never the first one, which names the row, nor numbers: half
    a number is none. Where that is not enough the `optional` columns go, the first ones first, and a line says so.
    Elsewhere nothing is cut.
    """
    table = [[str(title) for title in titles], *([" ".join(cell.split()) for cell in row] for row in rows)]
    columns, numbers, left_out = list(zip(*table, strict=True)), set(right), []
    width = terminal_width(sys.stderr if err else sys.stdout)
    room = width if width is None or sections is None else width - len(INDENT)
    widths = _widths(columns, numbers, room)
    for title in (each for each in optional if each in titles):
        if room is None or _total(widths) <= room:
            break
        left_out.append(title)
        columns = [column for column in columns if column[0] != title]
        widths = _widths(columns, numbers, room)
    signs = [">" if column[0] in numbers else "<" for column in columns]
    template = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    lines = [] if heading is None else [heading]
    titled, *written = [template.format(*map(_cut, row, widths)).rstrip() for row in zip(*columns, strict=True)]
    lines += [titled, *written] if sections is None else [INDENT + titled, *_sectioned(sections, written)]
    if left_out:
        lines.append(f"not shown on {width} columns: {', '.join(left_out)}")
    typer.echo("\n".join(lines), err=err)


def _sectioned(sections: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The lines, indented, with their section above the first of each."""
    found: list[str] = []
    for number, (section, line) in enumerate(zip(sections, lines, strict=True)):
        if not number or section != sections[number - 1]:
            found.append(section)
        found.append(INDENT + line)
    return found


def terminal_width(stream: TextIO | None) -> int | None:
    """The columns of a terminal, None for a pipe or a file; COLUMNS counts before what the terminal says of itself."""
    if stream is None or not stream.isatty():
        return None
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL
    except OSError:
        return USUAL


def _widths(columns: Sequence[Sequence[str]], numbers: set[str], room: int | None) -> list[int]:
    """The width of each column, with the widest one of words as narrow as the room demands and NARROWEST allows."""
    widths = [max(map(len, column)) for column in columns]
    words = [place for place, column in enumerate(columns) if place and column[0] not in numbers]
    if room is not None and words:
        widest = max(words, key=lambda place: widths[place])
        over = max(_total(widths) - room, 0)
        widths[widest] = max(widths[widest] - over, min(NARROWEST, widths[widest]))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"
