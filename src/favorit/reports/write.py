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


def write_report(document: Document, out: str | Path) -> Iterator[Path]:
    """Writes the report into the folder `out`, the page first. Yields each file once it is written."""
    folder = Path(out)
    _create(folder)
    write_text(folder / PAGE, page(document))
    yield folder / PAGE
    for section in document.sections:
        place = folder / section.name
        _create(place)
        for table in section.tables:
            for form, suffix in TABLE_FORMATS.items():
                target = place / f"{table.name}{suffix}"
                write_text(target, table.render(form) + "\n")
                yield target
        for figure in section.figures:
            targets = [place / f"{figure.name}{suffix}" for suffix in FORMATS]
            save_chart(figure.chart, *targets)
            yield from targets


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FavoritError(f"--out {folder}: {(error.strerror or str(error)).lower()}: give another folder") from None
