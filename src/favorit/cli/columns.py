"""Tables as plain text columns, for any number of rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import indent
from textwrap import wrap as wrap_text
from typing import TextIO

from favorit.terminal import echo, visible

MIN_TEXT_WIDTH = 12
DEFAULT_WIDTH = 80
INDENT = "  "


def write_columns(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    optional: Sequence[str] = (),
    heading: str | None = None,
    section: str | None = None,
    wrap: str | None = None,
    min_width: int = MIN_TEXT_WIDTH,
    err: bool = False,
) -> None:
    """Prints rows under titles. Columns in `right` are numbers, justified right.

    The column `section` is not printed beside the others: a line with its value is printed above the first row of each
    value. On a terminal the widest text column is cut to fit, but not below `min_width`, or continued on further lines
    if it is `wrap`. The first column, which names the row, and numbers are never cut. If the table is still too wide,
    `optional` columns are left out in this order, and a last line names them. Piped output is not cut.
    """
    table = [[str(title) for title in titles], *([one_line(cell) for cell in row] for row in rows)]
    columns, numbers, left_out = list(zip(*table, strict=True)), set(right), []
    sections = next((column[1:] for column in columns if column[0] == section), None)
    columns = [column for column in columns if column[0] != section]
    terminal = terminal_width(sys.stderr if err else sys.stdout)
    available = terminal if terminal is None or sections is None else terminal - len(INDENT)
    widths = _widths(columns, numbers, available, min_width)
    for title in (each for each in optional if each in titles):
        if available is None or _total(widths) <= available:
            break
        left_out.append(title)
        columns = [column for column in columns if column[0] != title]
        widths = _widths(columns, numbers, available, min_width)
    signs = [">" if column[0] in numbers else "<" for column in columns]
    template = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    fits = [_wrap if column[0] == wrap else _cut for column in columns]
    lines = [] if heading is None else [heading]
    title_line, *row_lines = [
        "\n".join(
            template.format(*parts).rstrip()
            for parts in zip_longest(*(fit(*each) for fit, *each in zip(fits, row, widths, strict=True)), fillvalue="")
        )
        for row in zip(*columns, strict=True)
    ]
    if sections is None:
        lines += [title_line, *row_lines]
    else:
        lines += [INDENT + title_line, *_group(sections, row_lines)]
    if left_out:
        lines.append(f"not shown on {terminal} columns: {', '.join(left_out)}")
    echo("\n".join(lines), err=err)


def one_line(cell: str) -> str:
    """The text with each run of white space as one space. Control characters are escapes, which have a width."""
    return " ".join(visible(cell).split())


def _group(sections: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The lines, indented, with the title of each section above its first line."""
    grouped: list[str] = []
    for number, (section, line) in enumerate(zip(sections, lines, strict=True)):
        if not number or section != sections[number - 1]:
            grouped.append(section)
        grouped.append(indent(line, INDENT))
    return grouped


def terminal_width(stream: TextIO | None) -> int | None:
    """The number of columns of a terminal, or None for piped output. COLUMNS overrides what the terminal reports."""
    if stream is None or not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except OSError:
        return DEFAULT_WIDTH


def _widths(columns: Sequence[Sequence[str]], numbers: set[str], available: int | None, min_width: int) -> list[int]:
    """The width of each column. The widest text column shrinks to fit, but not below `min_width`."""
    widths = [max(map(len, column)) for column in columns]
    texts = [index for index, column in enumerate(columns) if index and column[0] not in numbers]
    if available is not None and texts:
        widest = max(texts, key=lambda index: widths[index])
        excess = max(_total(widths) - available, 0)
        widths[widest] = max(widths[widest] - excess, min(min_width, widths[widest]))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _cut(cell: str, width: int) -> list[str]:
    return [cell if len(cell) <= width else f"{cell[: width - 1]}…"]


def _wrap(cell: str, width: int) -> list[str]:
    return wrap_text(cell, width) or [""]
