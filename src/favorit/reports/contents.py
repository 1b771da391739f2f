"""What a report consists of: a document of sections, each with answers in words, tables and figures.

These are data only. `page` turns a document into HTML, `write` into files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from favorit.charts.save import specification
from favorit.export import render_table

if TYPE_CHECKING:
    import altair
    import pandas


@dataclass(frozen=True)
class Column:
    """A column of a table. `write` turns a value into text; `explain` is shown on hover. `is_number` justifies right.

    A column with a `higher` is compared: True marks the largest value as best, False the smallest.
    """

    key: str
    title: str
    write: Callable[[Any], str] = str
    is_number: bool = False
    higher: bool | None = None
    explain: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values by column key. A missing value or None is an empty cell.

    `marks` maps (row number, column key) to words such as `best` and `Pareto-optimal`. `runs` has the identifiers of
    the runs behind each row, if any. `notes` are the sentences below the table.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    marks: Mapping[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    runs: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()

    def texts(self) -> list[list[str]]:
        """The cells of each row as text."""
        return [
            ["" if row.get(column.key) is None else column.write(row[column.key]) for column in self.columns]
            for row in self.rows
        ]

    def render(self, form: str) -> str:
        """The table as `csv`, `markdown` or `latex`."""
        right = [column.title for column in self.columns if column.is_number]
        return render_table([column.title for column in self.columns], self.texts(), form, right)


@dataclass(frozen=True)
class Figure:
    """One figure: its tidy data, and the chart drawn from them.

    `caption` says what to see and under which conditions it was measured.
    """

    name: str
    title: str
    caption: str
    data: pandas.DataFrame
    chart: altair.TopLevelMixin

    @cached_property
    def specification(self) -> dict[str, Any]:
        """The Vega-Lite specification of the chart, for the page and for files."""
        return specification(self.chart)


@dataclass(frozen=True)
class Answer:
    """A question and its answer in sentences made from numbers. `is_decided` is False if the runs cannot decide it.

    `missing` says which seeds or runs would decide it. `published` is what the report answered, and why ours differs.
    """

    question: str
    sentences: Sequence[str]
    is_decided: bool = True
    missing: str = ""
    published: str = ""


@dataclass(frozen=True)
class Gap:
    """Something that the runs do not allow yet: what it is, why, and the command that makes the missing runs."""

    what: str
    why: str
    command: str = ""


@dataclass(frozen=True)
class Section:
    """One study at one scale, or the runs of no study. `glance` is its result in one or two sentences."""

    name: str
    title: str
    question: str
    glance: str
    source: str = ""
    answers: Sequence[Answer] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    gaps: Sequence[Gap] = ()
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunDetails:
    """What the page shows about one run: its name, the fields that differ from the defaults, its result, and the
    command that repeats it.
    """

    id: str
    name: str
    status: str
    changed: Mapping[str, Any]
    result: Mapping[str, Any]
    command: str
    error: str = ""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    sections: Sequence[Section]
    runs: Sequence[RunDetails]
    facts: Mapping[str, str]
