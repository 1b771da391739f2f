"""The files that this user has imported: their paths and digests, in the user's state folder.

A run names the file of its components. Opening a run of somebody else must not execute code, so a file that a run names
is imported only if this user has imported the same content at the same path before. Each content has an entry of its
own, so processes that write at the same time do not disturb each other:

    components/<digest of the path>/<digest of the contents>.json
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path

from favorit.errors import FavoritError
from favorit.files import SCHEMA, read_json, write_json
from favorit.source import Source


class RefusedError(FavoritError):
    """The file must not be imported. The message continues a sentence that ends with the path of the file."""


def state_folder() -> Path:
    """The folder of the user's state: FAVORIT_STATE, or else the folder that the system has for it."""
    if given := os.environ.get("FAVORIT_STATE"):
        return Path(given).expanduser()
    from platformdirs import user_state_path

    return user_state_path("favorit", appauthor=False)


def remember(source: Source) -> None:
    """Remembers a file and its neighbors. If the state folder cannot be written, this is only a warning."""
    path, digests = os.path.realpath(source.path), source.digests
    entry = _folder(path) / f"{_digest(digests)}.json"
    try:
        if not entry.exists():
            entry.parent.mkdir(parents=True, exist_ok=True)
            write_json(entry, {"schema": SCHEMA, "file": path, "sha256": digests})
    except OSError as error:
        warnings.warn(
            f"{error.filename or entry}: {error.strerror}: commands on runs with components of {source.path} will need "
            f"--import {source.path} (FAVORIT_STATE sets another folder)",
            stacklevel=2,
        )


def recall(path: str) -> Source:
    """The file at `path` and its neighbors, if this user has imported exactly their present contents before.

    The modules that the file may import are those of the remembered entry, never those that a run lists.
    """
    path = os.path.realpath(path)
    reason = "which you have not imported before"
    for digests in _remembered(path):
        (name, _), *neighbors = digests.items()
        folder = path.removesuffix(name)
        contents = {each: _read(folder + each) for each in digests}
        changed = [each for each, content in contents.items() if _sha256(content) != digests[each]]
        if not changed:
            return Source(path, contents[name], tuple((each, contents[each]) for each, _ in neighbors), name)
        which = "which" if changed[0] == name else f"whose module {changed[0]}"
        reason = f"{which} has changed since you imported it"
    raise RefusedError(reason if os.path.isfile(path) else "which does not exist")


def _remembered(path: str) -> list[dict[str, str]]:
    """The digests of each remembered version of a file by relative path, the newest last."""
    try:
        entries = sorted(_folder(path).glob("*.json"), key=lambda entry: entry.stat().st_mtime)
        found = [read_json(str(entry)) for entry in entries]
    except (OSError, FavoritError):  # an entry that cannot be read is not remembered
        return []
    digests = [each.get("sha256") for each in found if each.get("file") == path]
    return [each for each in digests if each and isinstance(each, dict)]


def _folder(path: str) -> Path:
    return state_folder() / "components" / _sha256(os.fsencode(path))[:32]


def _digest(digests: dict[str, str]) -> str:
    return _sha256(json.dumps(sorted(digests.items())).encode())[:32]


def _read(path: str) -> bytes:
    """The content of a file; empty if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
