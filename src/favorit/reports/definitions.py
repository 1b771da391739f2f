"""Definitions of the parts of a report: each computes its data from the runs of a study, or says what is missing.

A figure is two functions: `data` computes a tidy table from the runs, `draw` turns the table into a chart. Tests look
at the data. `PARTS` of `reports/parts/` maps each study to its figures, tables and questions; the parts of `general`
apply to every study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from favorit.reports.contents import Answer, Figure, Gap, Table

if TYPE_CHECKING:
    import altair
    import pandas

    from favorit.reports.runs import StudyRuns
    from favorit.reports.style import Style

# {variant: its label, color and shape}.
Styles = Mapping[str, "Style"]


@dataclass(frozen=True)
class FigureDefinition:
    """A figure: `data` returns an empty table if the runs do not allow it; `needs` then says what is missing.

    `options` are those that the command which makes the missing runs needs, if it is not only a matter of more points.
    """

    name: str
    title: str
    caption: str
    data: Callable[[StudyRuns], pandas.DataFrame]
    draw: Callable[[pandas.DataFrame, Styles], altair.TopLevelMixin]
    needs: str
    options: str = ""

    def build(self, runs: StudyRuns) -> Figure | Gap:
        """The figure, or the gap that it leaves."""
        data = self.data(runs)
        if not len(data):
            return Gap(self.title, self.needs, runs.command(options=self.options))
        return Figure(self.name, self.title, self.caption, data, self.draw(data, runs.styles))


@dataclass(frozen=True)
class TableDefinition:
    """A table: `build` returns None if the runs do not allow it; `needs` then says what is missing."""

    name: str
    title: str
    table: Callable[[StudyRuns], Table | None]
    needs: str

    def build(self, runs: StudyRuns) -> Table | Gap:
        """The table, or the gap that it leaves."""
        return self.table(runs) or Gap(self.title, self.needs, runs.command())


@dataclass(frozen=True)
class Question:
    """A question of a report, answered in sentences from the numbers of the runs."""

    text: str
    answer: Callable[[StudyRuns], Answer]


@dataclass(frozen=True)
class Parts:
    """The parts of one study's section, in the order of the page."""

    figures: Sequence[FigureDefinition] = field(default=())
    tables: Sequence[TableDefinition] = field(default=())
    questions: Sequence[Question] = field(default=())
