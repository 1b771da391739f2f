"""Conditions on the rows of `favorit runs`, such as `data=cifar10` or `test.accuracy>0.5`, and their order."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import ge, gt, le, lt
from typing import Any

from favorit.errors import FavoritError

Row = Mapping[str, Any]

_CONDITION = re.compile(r"\s*(?P<field>[^=<>!]+?)\s*(?P<sign>>=|<=|!=|==|=|>|<)\s*(?P<value>.*?)\s*")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {">=": ge, "<=": le, ">": gt, "<": lt}


def find_field(text: str, rows: Iterable[Row], titles: Mapping[str, str]) -> str:
    """The field of the rows that `text` names: a field, the title of a column, or the last part of one field.

    `data` is short for `data.name`. `titles` has the field of each column title.
    """
    fields = list(dict.fromkeys(name for row in rows for name in row))
    if text in fields:
        return text
    if text in titles:
        return titles[text]
    ends = [name for name in fields if f".{name.removesuffix('.name')}".endswith(f".{text}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise FavoritError(f"{text} is the last part of several fields: write one of {', '.join(ends)}")
    short = {each.rpartition(".")[2]: each for each in fields} | {each: each for each in fields} | dict(titles)
    near = difflib.get_close_matches(text, short, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise FavoritError(f"unknown field {text!r} of a run: {hint}`favorit runs --json` prints every field")


def select(rows: Sequence[Row], conditions: Iterable[str], titles: Mapping[str, str]) -> list[Row]:
    """The rows that meet all conditions: FIELD=VALUE or FIELD!=VALUE, where * and ? in the value match any text, or
    FIELD>VALUE, >=, <, <=.
    """
    found = list(rows)
    for condition in conditions:
        parts = _CONDITION.fullmatch(condition)
        if parts is None:
            raise FavoritError(f"--where {condition!r} is not valid: write FIELD=VALUE, such as data=cifar10")
        field = find_field(parts["field"], rows, titles)
        holds = _test(condition, parts["sign"], parts["value"], any(_is_number(row.get(field)) for row in rows))
        found = [row for row in found if holds(row.get(field))]
    return found


def _test(condition: str, sign: str, value: str, is_numeric: bool) -> Callable[[Any], bool]:
    """A function that says whether a cell meets a condition."""
    number = _number(value)
    if sign not in _ORDERS:
        wanted = sign != "!="
        return lambda cell: (matches(cell, value) or (_is_number(cell) and cell == number)) is wanted
    if is_numeric and number is None:
        raise FavoritError(f"--where {condition!r} is not valid: {value!r} is not a number")
    order, limit = _ORDERS[sign], number if is_numeric else value
    return lambda cell: (
        isinstance(cell, int | float | str) and isinstance(cell, str) != is_numeric and order(cell, limit)
    )


def matches(cell: Any, value: str) -> bool:
    """True if the cell is written like the value, in upper or lower case, or matches its * and ?."""
    text = "none" if cell is None else str(cell)
    return fnmatchcase(text, value) if set("*?") & set(value) else text.lower() == value.lower()


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _number(text: str) -> float | None:
    """0.5 for `0.5` and `50%`; None for other text."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None


def sort_rows(rows: Sequence[Row], field: str, reverse: bool = False) -> list[Row]:
    """The rows in the order of a field: numbers before text. Rows without a value come last."""

    def key(row: Row) -> tuple[bool, Any]:
        return (False, row[field]) if _is_number(row[field]) else (True, str(row[field]))

    known = sorted((row for row in rows if row.get(field) is not None), key=key, reverse=reverse)
    return [*known, *(row for row in rows if row.get(field) is None)]
