"""Writes tables. If the process is killed, the path holds the previous file or the whole new one."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from favorit.errors import FavoritError
from favorit.files import write_atomically

# Characters that LaTeX reads as commands.
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}"}
)

# A number with thousands separators.
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")


def write_csv(rows: Sequence[Any], path: Path) -> None:
    """Writes one row per dataclass or dict. Columns are all fields in order of appearance. None is an empty cell."""
    import pandas

    try:
        write_atomically(path, lambda temporary: pandas.DataFrame(rows).to_csv(temporary, index=False))
    except OSError as error:
        raise FavoritError(f"cannot write {path}: {error.strerror or error}") from None


def render_table(titles: Sequence[str], rows: Iterable[Sequence[str]], form: str, right: Iterable[str] = ()) -> str:
    """A table of text as `csv`, `markdown` or `latex` (booktabs), without a final line break.

    Columns in `right` are justified right. They hold numbers, which CSV has without thousands separators.
    """
    return _RENDERERS[form](titles, list(rows), set(right))


def _render_csv(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Container[str]) -> str:
    plain = [
        [cell.replace(",", "") if THOUSANDS.fullmatch(cell) and title in right else cell for title, cell in pairs]
        for pairs in (zip(titles, row, strict=True) for row in rows)
    ]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([titles, *plain])
    return buffer.getvalue().removesuffix("\n")


def _render_markdown(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Container[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = ["---:" if title in right else "---" for title in titles]
    return "\n".join([line(titles), line(rule), *map(line, rows)])


def _render_latex(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Container[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(cell.translate(LATEX) for cell in cells)} \\\\"

    columns = "".join("r" if title in right else "l" for title in titles)
    body = [r"\toprule", line(titles), r"\midrule", *map(line, rows), r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"])


_RENDERERS = {"csv": _render_csv, "markdown": _render_markdown, "latex": _render_latex}
