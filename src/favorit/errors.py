"""Errors that a user can fix. This module imports nothing heavy, so that the command line starts fast."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Any


class FavoritError(ValueError):
    """A user's mistake. The message is one line: what is wrong, the value given, and what is valid."""


def unknown(kind: str, name: str, known: Iterable[str]) -> FavoritError:
    """The error for an unknown name, with the nearest match and all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return FavoritError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names) or 'none'}")


def unknown_component(kind: str, name: str, known: Iterable[str]) -> FavoritError:
    """The error for an unknown name that a file of the user's may define."""
    return FavoritError(f"{unknown(kind, name, known)}; register your own, or give its file with --import FILE")


# pydantic's type of a problem -> what is valid. The names in braces come from pydantic's description of the bound.
_VALID = {
    "int": "an integer",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "True or False",
    "string": "text",
    "greater_than": "a value above {gt:g}",
    "greater_than_equal": "a value of at least {ge:g}",
    "less_than": "a value below {lt:g}",
    "less_than_equal": "a value of at most {le:g}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "tuple": "a list of values, such as (1, 2)",
    "list": "a list of values, such as (1, 2)",
    "too_short": "at least {min_length} values",
    "too_long": "at most {max_length} values",
    "missing": "more values",
    "dict": "a mapping of names to values",
    "model": "a mapping of fields to values",
    "none_required": "None",
}


def valid_values(problems: Iterable[Mapping[str, Any]]) -> str:
    """What is valid instead of a value, in plain words, from the problems that pydantic found with it."""
    found = []
    for problem in problems:
        kind = problem["type"]
        if kind == "value_error":
            found.append(problem["msg"].removeprefix("Value error, "))
        else:
            found.append(_VALID.get(kind, _VALID.get(kind.partition("_")[0], "another type of value")))
            found[-1] = found[-1].format(**problem.get("ctx", {}))
    return " or ".join(dict.fromkeys(found))


def check_positive(**values: object) -> None:
    """Raises an error for the first value that is not an integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise FavoritError(f"{name}={value!r} is not valid: an integer of at least 1")


def check_path(name: str, path: object) -> None:
    """Raises an error unless `path` is text or a path object."""
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes):
        raise FavoritError(f"{name} must be a path, not {type(path).__name__}")
