"""Atomic writes, so that a kill never leaves a partial file, and errors that name a damaged file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from favorit.errors import FavoritError

SCHEMA = 1


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a temporary file in the same folder, which is then renamed to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8, atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: str, **parts: type) -> dict[str, Any]:
    """The JSON object in a file of a run. Raises an error if one of `parts` (name=type) is missing."""
    with open(path, "rb", buffering=0) as file:
        return parse_json(file.read(), path, **parts)


def parse_json(content: bytes, path: str, **parts: type) -> dict[str, Any]:
    """The JSON object in `content`, checked as in `read_json`. Errors name `path`."""
    try:
        value = from_json(content)  # twice as fast as `json` on the small files of thousands of runs
    except ValueError as error:
        raise damaged(path, error) from None
    if not isinstance(value, dict) or not isinstance(value.get("schema"), int):
        raise damaged(path, "no object with a schema")
    if value["schema"] > SCHEMA:
        raise FavoritError(
            f"{path} was written by a newer favorit (schema {value['schema']}, this one reads {SCHEMA}): upgrade"
        )
    for name, kind in parts.items():
        if not isinstance(value.get(name), kind):
            raise damaged(path, f"no {name}")
    return value


def damaged(path: str | Path, reason: object, run: str | Path | None = None) -> FavoritError:
    """The error for a damaged file. The message says to delete `run` (default: the folder of the file)."""
    return FavoritError(
        f"{path} is damaged ({reason}): restore it, or delete {run or os.path.dirname(path)} and train again"
    )


def sync(path: Path) -> None:
    """Waits until the file is on disk (fsync)."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
