"""Points: the configurations of a study as data.

A point is a dictionary of dotted configuration fields and their values: {"model.layout": "relu(m=64)", "seed": 1}.
`model.preset` sets all fields of that preset; other fields of the point override it.

    product({"model.layout": ["softmax", "uniform"], "seed": [0, 1]})     4 points
    zipped({"model.dim": [64, 128], "train.lr": [1e-3, 3e-4]})            2 points
    a + b      the points of a, then those of b; an error if a point is in both
    a | b      the union: a point in both is kept once
    a * b      each point of a combined with each point of b
    a.where(lambda point: point["seed"] < 2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product as every_combination
from types import MappingProxyType
from typing import Any, overload

from favorit.errors import FavoritError, unknown
from favorit.fields import DEFAULTS

Changes = Mapping[str, Any]

PRESET = "model.preset"
FIELDS = frozenset([PRESET, *DEFAULTS])


def written(point: Changes) -> str:
    """A point as text for messages."""
    return " ".join(f"{field}={value}" for field, value in point.items()) or "no changes"


def key(point: Changes) -> str:
    """Text that is equal for equal changes in any order."""
    return repr(sorted(point.items()))


def check_fields(fields: Iterable[str]) -> None:
    """Raises an error for the first field that is not a configuration field."""
    for field in fields:
        if field not in FIELDS:
            raise unknown("field of a run", field, FIELDS)


class Points(Sequence[Changes]):
    """An immutable sequence of points."""

    def __init__(self, *points: Changes) -> None:
        for point in points:
            if not isinstance(point, Mapping):
                raise FavoritError(f"a point is a dictionary such as {{'model.dim': 64}}, not {point!r}")
        self._points = tuple(MappingProxyType(dict(point)) for point in points)
        check_fields(dict.fromkeys(field for point in self._points for field in point))

    @overload
    def __getitem__(self, index: int) -> Changes: ...
    @overload
    def __getitem__(self, index: slice) -> Points: ...
    def __getitem__(self, index: int | slice) -> Changes | Points:
        return Points(*self._points[index]) if isinstance(index, slice) else self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __iter__(self) -> Iterator[Changes]:
        return iter(self._points)

    def __repr__(self) -> str:
        return f"<{len(self)} points>"

    def __add__(self, others: Points) -> Points:
        _check_points(others, "+")
        keys = set(map(key, self))
        for point in others:
            if key(point) in keys:
                raise FavoritError(
                    f"the point {written(point)} is on both sides of +: remove one, or use | to keep it once"
                )
        return Points(*self, *others)

    def __or__(self, others: Points) -> Points:
        _check_points(others, "|")
        keys = set(map(key, self))
        return Points(*self, *(point for point in others if key(point) not in keys))

    def __mul__(self, others: Points) -> Points:
        _check_points(others, "*")
        if common := {field for point in self for field in point} & {field for point in others for field in point}:
            raise FavoritError(f"{', '.join(sorted(common))} is on both sides of *: a point has one value per field")
        return Points(*({**one, **other} for one in self for other in others))

    def where(self, holds: Callable[[Changes], bool]) -> Points:
        """The points for which `holds` returns true. Use `point.get` for fields that only some points have."""
        if not callable(holds):
            raise FavoritError(
                f"where needs a function of a point, such as lambda point: point['seed'] < 2, not {holds!r}"
            )
        try:
            return Points(*(point for point in self if holds(point)))
        except KeyError as error:
            raise FavoritError(f"where: a point has no field {error}: use point.get({error}, default)") from None


def _check_points(others: object, operator: str) -> None:
    if not isinstance(others, Points):
        raise FavoritError(
            f"points {operator} {others!r}: the right side must be Points, from product, zipped or Points"
        )


def product(fields: Mapping[str, Sequence[Any]] | None = None, /, **more: Sequence[Any]) -> Points:
    """Every combination of the fields' values; the last field varies fastest."""
    lists = _lists(fields, more)
    return Points(*(dict(zip(lists, values, strict=True)) for values in every_combination(*lists.values())))


def zipped(fields: Mapping[str, Sequence[Any]] | None = None, /, **more: Sequence[Any]) -> Points:
    """The first values of all fields together, then the second ones, and so on."""
    lists = _lists(fields, more)
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{field} has {len(values)}" for field, values in lists.items())
        raise FavoritError(f"zipped needs the same number of values for each field: {lengths}")
    return Points(*(dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)))


def _lists(fields: Mapping[str, Sequence[Any]] | None, more: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    if not isinstance(fields, Mapping | None):
        raise FavoritError(f"give a dictionary of fields, such as {{'model.dim': [64, 128]}}, not {fields!r}")
    lists = {**(fields or {}), **more}
    for field, values in lists.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise FavoritError(f"{field}={values!r}: give a list of values, such as [{values!r}]")
    return lists
