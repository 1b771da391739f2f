"""A run folder as plain files by name: what travels between the driver and a node, and how it is laid down on the other
side.

No shared file system is assumed, and no name is trusted: what may arrive is a file of a run, or a file of one of its
checkpoints.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from favorit.errors import FavoritError
from favorit.files import write_atomically
from favorit.training.folder import RunFolder

Contents = dict[str, bytes]

# Neither the lock, nor what is half written, nor a way out of the folder.
_NAME = re.compile(r"(?:checkpoint-(?P<step>[0-9]+)/)?(?P<file>[A-Za-z0-9_-]+\.(?:json|jsonl|safetensors|npz|pt))")


def pack(folder: RunFolder) -> Contents:
    """All that the run needs to go on or to be read: its files, and those of the newest checkpoint."""
    places = [folder.path, *folder.checkpoints()[-1:]]
    files = {path.relative_to(folder.path).as_posix(): path for place in places for path in place.iterdir()}
    return {name: path.read_bytes() for name, path in files.items() if _NAME.fullmatch(name)}


def lay_down(contents: Contents, folder: RunFolder) -> None:
    """Writes what arrived. A kill at any moment leaves a run that goes on: records and weights come before the
    checkpoint that knows of them, which appears whole, and the result comes last.
    """
    files: Contents = {}
    checkpoints: dict[int, Contents] = {}
    for name, content in contents.items():
        if not (match := _NAME.fullmatch(name)):
            raise FavoritError(f"{folder.path}: {name!r} is not the name of a file of a run, and was not written")
        place = files if match["step"] is None else checkpoints.setdefault(int(match["step"]), {})
        place[match["file"]] = content
    result = files.pop("result.json", None)
    for name in sorted(files, key=lambda name: (name != "config.json", name)):
        _write(folder.path / name, files[name])
    for step, parts in sorted(checkpoints.items()):
        folder.write_checkpoint(step, partial(_fill, parts))
    if result is not None:
        _write(folder.path / "result.json", result)
        if not checkpoints:  # a complete run has none
            folder.tidy()


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _fill(parts: Contents, place: Path) -> None:
    for name, content in parts.items():
        (place / name).write_bytes(content)
