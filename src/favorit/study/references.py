"""Which point of a study a published row is about."""

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
    """A published table and `point`: a row -> the fields that its point has, or in words why no point of the study
    matches.

    A field that the point must not have is written with the value None.
    """

    table: str
    point: Callable[[Row], Mapping[str, Any] | str]


@cache
def mapped_rows(each: Published) -> tuple[tuple[int, Mapping[str, Any] | str], ...]:
    """The number of each row, counted from 1, with the fields of its point or the reason that it has none."""
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
    """True if a point with these changes has all fields."""
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
    """The published rows that have no point, with the reasons."""
    return [
        Unmatched(each.table, number, fields)
        for each in tables
        for number, fields in mapped_rows(each)
        if isinstance(fields, str)
    ]
