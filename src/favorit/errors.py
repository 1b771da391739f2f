"""Errors that a user can fix. This module imports nothing heavy, so that the command line starts fast."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class FavoritError(ValueError):
    """A user's mistake. The message is one line: what is wrong, the value given, and what is valid."""


def unknown(kind: str, name: str, known: Iterable[str]) -> FavoritError:
    """The error for an unknown name, with the nearest match and all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return FavoritError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names) or 'none'}")


def check_positive(**values: object) -> None:
    """Raises an error for the first value that is not an integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise FavoritError(f"{name}={value!r} is not valid: an integer of at least 1")


def check_path(name: str, path: object) -> None:
    """Raises an error unless `path` is text or a path object."""
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes):
        raise FavoritError(f"{name} must be a path, not {type(path).__name__}")
