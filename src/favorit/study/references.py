"""Maps rows of published tables to the points of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from favorit import published
from favorit.published import Reference, Row
from favorit.study.points import Changes, check_fields


@dataclass(frozen=True)
class Published:
    """A published table, and a function `point` that maps a row to the fields of its point. The field value None means
    that the point does not set the field.

    If no point of the study matches a row, `point` returns the reason as text.
    """

    table: str
    point: Callable[[Row], Mapping[str, Any] | str]


@cache
def mapped_rows(each: Published) -> tuple[tuple[int, Mapping[str, Any] | str], ...]:
    """The number of each row, counted from 1, with the fields of its point or the reason why it has no point."""
    found = tuple(enumerate(map(each.point, published.read(each.table).rows), 1))
    check_fields({name for _, fields in found if not isinstance(fields, str) for name in fields})
    return found


@dataclass(frozen=True)
class Unmatched:
    """A published row that no point of the study matches, and why."""

    table: str
    row: int
    reason: str


def agrees(fields: Mapping[str, Any], changes: Changes) -> bool:
    """True if a point with these changes has all these fields and values."""
    return all(changes.get(name) == value for name, value in fields.items())


def references(tables: Iterable[Published], changes: Changes) -> list[Reference]:
    """The published numbers of a point."""
    return [
        reference
        for each in tables
        for number, fields in mapped_rows(each)
        if not isinstance(fields, str) and agrees(fields, changes)
        for reference in published.read(each.table).references(number)
    ]


def unmatched(tables: Iterable[Published]) -> list[Unmatched]:
    """The published rows without a point, with the reasons."""
    return [
        Unmatched(each.table, number, fields)
        for each in tables
        for number, fields in mapped_rows(each)
        if isinstance(fields, str)
    ]
