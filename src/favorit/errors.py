"""The error that a user can mend, apart from the rest so that the command line reaches it without imports."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FavoritError(ValueError):
    """A user's mistake. The message is one line: where, what was given, what would be valid."""


def unknown(kind: str, name: str, known: Iterable[str]) -> FavoritError:
    """The error for a name that does not exist: the nearest match first, then all that do."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return FavoritError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names) or 'none'}")


def positive(**values: object) -> None:
    """An error that names the first value that is not a whole number of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise FavoritError(f"{name}={value!r} is not valid: a whole number of at least 1")
