"""`favorit.report`: a report as an object that shows itself in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from favorit.errors import FavoritError, check_path
from favorit.reports.build import build_report
from favorit.reports.contents import Document
from favorit.reports.page import page
from favorit.reports.write import write_report
from favorit.study import Study

if TYPE_CHECKING:
    import altair
    import pandas

StudyLike = str | Path | Study

HEIGHT = "45rem"  # of the page in a notebook


@dataclass(frozen=True, repr=False)
class Report:
    """A report of runs. In a notebook it shows its page; `write` saves the page and every figure and table."""

    document: Document

    def __repr__(self) -> str:
        sections = self.document.sections
        runs = len(self.document.runs)
        lines = [f"{each.title}: {each.glance}" for each in sections]
        return "\n".join([f"<Report: {runs} run{'' if runs == 1 else 's'}, {len(self.charts)} figures>", *lines])

    def _repr_html_(self) -> str:
        # The sandbox keeps the page's scripts apart from the notebook.
        return (
            f'<iframe sandbox="allow-scripts allow-forms" style="width: 100%; height: {HEIGHT}; border: 0" '
            f'srcdoc="{escape(page(self.document))}"></iframe>'
        )

    @property
    def charts(self) -> dict[str, altair.TopLevelMixin]:
        """The figures as Altair charts, which can be restyled, by `section/figure`."""
        return {
            f"{each.name}/{figure.name}": figure.chart for each in self.document.sections for figure in each.figures
        }

    @property
    def tables(self) -> dict[str, pandas.DataFrame]:
        """The tables with their unrounded values, by `section/table`."""
        import pandas

        return {
            f"{each.name}/{table.name}": pandas.DataFrame(
                table.rows, columns=pandas.Index([column.key for column in table.columns])
            )
            for each in self.document.sections
            for table in each.tables
        }

    def write(self, out: str | Path = "report") -> Path:
        """Writes the page, each figure and each table into the folder `out`. Returns the path of the page."""
        check_path("the folder of a report", out)
        return next(iter(list(write_report(self.document, out))))


def report(
    studies: StudyLike | Sequence[StudyLike] = (), folder: str | Path = "runs", *, scale: str | None = None
) -> Report:
    """The report of the runs in a folder: of these studies, or of all studies that have runs and of the runs of no
    study. A study is a `Study`, a name or a file.

    Example:
        favorit.report("hybrids", "results/runs").write("report")
    """
    check_path("folder", folder)
    listed = [studies] if isinstance(studies, str | Path | Study) else studies
    if not isinstance(listed, list | tuple) or not all(isinstance(each, str | Path | Study) for each in listed):
        raise FavoritError(f"studies={studies!r} is not valid: a Study, its name or its file, or a list of these")
    return Report(build_report(folder, listed, scale))
