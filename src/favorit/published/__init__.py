"""The published numbers of the five reports, each with its source, place, hardware and flags.

Example:
    table = published.read("hybrids")
    table.rows[0]             the cells of the first row by column
    table.references(1)       the numbers of the first row, each with the function that computes ours from a run
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from favorit.errors import FavoritError, unknown
from favorit.published.quantities import Quantity, class_score
from favorit.published.tables import ABOUT, FLAGS, About

__all__ = ["ABOUT", "FLAGS", "Quantity", "Reference", "Row", "Table", "Value", "parse", "read"]

Row = Mapping[str, str | float | None]
Value = float | tuple[float, float]  # a number, or the low and the high end of a range


@dataclass(frozen=True)
class Reference:
    """One published number. `row` is the number of its row in `table`, from 1; `note` is the remark in that row."""

    table: str
    row: int
    quantity: Quantity
    value: Value
    hardware: str
    flags: tuple[str, ...]
    place: str
    source: str
    note: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The low and the high end of the value; equal for a single number."""
        return self.value if isinstance(self.value, tuple) else (self.value, self.value)

    @property
    def text(self) -> str:
        """The value as a table shows it: 72.29, 75..78 or >50."""
        low, high = self.ends
        if low == high:
            return f"{low:.6g}"
        return f">{low:.6g}" if math.isinf(high) else f"{low:.6g}..{high:.6g}"

    def difference(self, ours: float) -> float:
        """ours - published; the signed distance to a range, 0 inside it."""
        low, high = self.ends
        return ours - min(max(ours, low), high)

    def ratio(self, ours: float) -> float:
        """ours / published; for a range, the ratio to its nearest end, and 1 inside it."""
        low, high = self.ends
        return ours / min(max(ours, low), high)


@dataclass(frozen=True)
class Table:
    """A published table. Each row maps columns to cells: numbers are floats, empty cells are None. `flags` are those
    that apply to the whole table.
    """

    name: str
    rows: tuple[Row, ...]
    source: str
    hardware: str
    flags: tuple[str, ...]

    def references(self, number: int) -> list[Reference]:
        """The numbers of row `number` (from 1) in the order of the table's quantities; empty cells are left out."""
        row, about = self.rows[number - 1], ABOUT[self.name]
        own = tuple(str(row.get("flags") or "").split())
        found = []
        for quantity in about.quantities or self._scores(about, number):
            if (value := self._value(number, quantity.columns)) is None:
                continue
            flags = [rule.text for rule in about.flags if rule.holds(row, quantity.columns)]
            place = next(rule.text for rule in about.places if rule.holds(row, quantity.columns))
            note = str(row.get("note") or "")
            found.append(
                Reference(self.name, number, quantity, value, self.hardware, (*flags, *own), place, self.source, note)
            )
        return found

    def _scores(self, about: About, number: int) -> list[Quantity]:
        """The scores of the class in row `number`. Rows are in label order; the last row is `overall`."""
        name = str(self.rows[number - 1][about.key[0]])
        label, title = (None, "mean over classes") if name == "overall" else (number - 1, name)
        return [Quantity(f"{score}, {title}", "%", (score,), class_score(score, label)) for score in about.scores]

    def _value(self, number: int, columns: tuple[str, ...]) -> Value | None:
        cells = [self.rows[number - 1][column] for column in columns]
        if any(cell is None for cell in cells):
            return None
        ends = [end for cell, column in zip(cells, columns, strict=True) for end in self._ends(cell, number, column)]
        return ends[0] if min(ends) == max(ends) else (min(ends), max(ends))

    def _ends(self, cell: str | float | None, number: int, column: str) -> tuple[float, ...]:
        """12.5 -> (12.5,), "50-60" -> (50, 60), ">50" -> (50, inf)."""
        if isinstance(cell, float):
            return (cell,)
        if ends := re.fullmatch(r"([\d.]+)-([\d.]+)", str(cell)):
            return float(ends[1]), float(ends[2])
        if low := re.fullmatch(r">([\d.]+)", str(cell)):
            return float(low[1]), math.inf
        raise FavoritError(
            f"published table {self.name}, row {number}: {column}={cell!r} is not a number: write 12.5, 50-60 or >50"
        )


@cache
def read(name: str) -> Table:
    """A published table by name."""
    if name not in ABOUT:
        raise unknown("published table", name, ABOUT)
    return parse(name, files(__name__).joinpath(f"{name}.csv").read_text())


def parse(name: str, text: str) -> Table:
    """The published table `name` from the text of its CSV file. Two rows with the same key are an error."""
    about = ABOUT[name]
    columns, *lines = csv.reader(text.splitlines())
    if absent := [column for column in _columns(about) if column not in columns]:
        raise FavoritError(f"published table {name}: no column {', '.join(absent)}; it has {', '.join(columns)}")
    rows: list[Row] = []
    seen: dict[tuple[str | float | None, ...], int] = {}
    for number, cells in enumerate(lines, 1):
        if len(cells) != len(columns):
            raise FavoritError(f"published table {name}, row {number}: {len(cells)} cells, but {len(columns)} columns")
        row = dict(zip(columns, map(_cell, cells), strict=True))
        key = tuple(row[column] for column in about.key)
        if (first := seen.setdefault(key, number)) != number:
            what = " ".join(f"{column}={row[column]}" for column in about.key if row[column] is not None)
            raise FavoritError(f"published table {name}: rows {first} and {number} are both {what}: remove one")
        rows.append(row)
    flags = tuple(rule.text for rule in about.flags if not rule.columns and not rule.where)
    return Table(name, tuple(rows), about.source, about.hardware, flags)


def _columns(about: About) -> list[str]:
    return [*about.key, *(column for quantity in about.quantities for column in quantity.columns), *about.scores]


def _cell(text: str) -> str | float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text
