"""Transfers a run folder between the driver and a node: maps file names to their content.

No shared file system is needed. Received names are not trusted: only names of run files and checkpoint files are
accepted.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from favorit.errors import FavoritError
from favorit.files import write_atomically
from favorit.training.digests import is_intact, verified
from favorit.training.folder import RunFolder

Contents = dict[str, bytes]

# Excludes the lock, temporary files, and paths outside the folder.
_NAME = re.compile(r"(?:checkpoint-(?P<step>[0-9]+)/)?(?P<file>[A-Za-z0-9_-]+\.(?:json|jsonl|safetensors|npz|pt))")


def read_contents(folder: RunFolder) -> Contents:
    """The files needed to resume or read the run: those in its folder, and those of the newest checkpoint.

    A damaged checkpoint is sent only if there is no other, so that the error names its file.
    """
    checkpoints = folder.checkpoints()
    intact = (path for path in reversed(checkpoints) if is_intact(path))
    folders = [folder.path, *(checkpoints and [next(intact, checkpoints[-1])])]
    files = {path.relative_to(folder.path).as_posix(): path for each in folders for path in each.iterdir()}
    return {name: path.read_bytes() for name, path in files.items() if _NAME.fullmatch(name)}


def write_contents(contents: Contents, folder: RunFolder) -> None:
    """Writes received files. After a kill at any moment the run can be resumed: records are written before the
    checkpoint that refers to them, a checkpoint appears only when all its files are written, weights follow as in
    training, and the result is written last.
    """
    files: Contents = {}
    checkpoints: dict[int, Contents] = {}
    for name, content in contents.items():
        if not (match := _NAME.fullmatch(name)):
            raise FavoritError(f"{folder.path}: {name!r} is not the name of a file of a run; it was not written")
        target = files if match["step"] is None else checkpoints.setdefault(int(match["step"]), {})
        target[match["file"]] = content
    for step, checkpoint in checkpoints.items():
        verified(checkpoint, folder.path / f"checkpoint-{step}")
    result = files.pop("result.json", None)
    for name in ("config.json", "epochs.jsonl"):
        if name in files:
            _write(folder.path / name, files.pop(name))
    for step, checkpoint in sorted(checkpoints.items()):
        folder.write_checkpoint(step, partial(_fill, checkpoint))
    for name in sorted(files):
        _write(folder.path / name, files[name])
    if result is not None:
        _write(folder.path / "result.json", result)
        if not checkpoints:  # a complete run has no checkpoints
            folder.tidy()


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _fill(files: Contents, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)
