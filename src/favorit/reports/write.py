"""Writes a report: the page, each figure as PNG, SVG and PDF, and each table as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from favorit.charts.save import FORMATS, save_chart
from favorit.errors import FavoritError
from favorit.files import write_text
from favorit.reports.contents import Document
from favorit.reports.page import page

TABLE_FORMATS = {"csv": ".csv", "markdown": ".md", "latex": ".tex"}
PAGE = "index.html"


def count_files(document: Document) -> int:
    """The number of files that `write_report` writes."""
    sections = document.sections
    return 1 + sum(len(TABLE_FORMATS) * len(each.tables) + len(FORMATS) * len(each.figures) for each in sections)


def write_report(document: Document, out: str | Path) -> Iterator[Path]:
    """Writes the report into the folder `out`, the page first. Yields each file once it is written."""
    folder = Path(out)
    yield _write(folder / PAGE, page(document))
    for section in document.sections:
        place = folder / section.name
        for table in section.tables:
            for form, suffix in TABLE_FORMATS.items():
                yield _write(place / f"{table.name}{suffix}", table.render(form) + "\n")
        for figure in section.figures:
            targets = [_created(place / f"{figure.name}{suffix}") for suffix in FORMATS]
            save_chart(figure.specification, *targets)
            yield from targets


def _write(path: Path, text: str) -> Path:
    try:
        write_text(_created(path), text)
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _created(path: Path) -> Path:
    """The path, after its folder is created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _unwritable(path: Path, error: OSError) -> FavoritError:
    return FavoritError(f"cannot write {path}: {(error.strerror or str(error)).lower()}: give another folder")
