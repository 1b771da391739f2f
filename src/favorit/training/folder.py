"""A run on disk: the files of one folder, each written so that a kill at any moment leaves it whole or absent.

config.json            first          checkpoint-<step>/     renamed into place whole
lock                   flock          best.safetensors       weights that validation chose (best-ema.safetensors beside
it) epochs.jsonl           append-only    predictions.npz        test logits and labels
error.txt              why it broke   result.json            last
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zipfile import BadZipFile

from favorit.errors import FavoritError
from favorit.files import SCHEMA, damaged, read_json, sync, write_atomically, write_json
from favorit.training.stored import StoredRun, checked_result, parse_epochs

if TYPE_CHECKING:
    from favorit.training.predictions import Predictions

# What has no place in a complete run; the dotted names are those of `write_atomically`.
_LEFTOVER = re.compile(r"(checkpoint|writing)-[0-9]+|error\.txt|\..+\.[0-9]+")


class HeldError(FavoritError):
    """Another process trains the run."""


class RunFolder(StoredRun):
    """The run in the folder `path`."""

    form = "folder"

    def __init__(self, path: str | Path) -> None:
        self.path = path if isinstance(path, Path) else Path(path)

    @property
    def id(self) -> str:
        return self.path.name

    def exists(self) -> bool:
        return os.path.exists(self._file("config.json"))

    def _file(self, name: str) -> str:
        """Where a file is, as text: joining paths is a fifth of what listing thousands of runs takes."""
        return f"{self.path}{os.sep}{name}"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the run. The system releases it when its holder dies, however it dies."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "lock", "a+") as file:
            if not _take(file):
                raise HeldError(
                    f"{self.path} is being trained by another process: wait for it, or stop it; `favorit runs` shows what is there"
                )
            yield

    def held(self) -> bool:
        try:
            with open(self._file("lock")) as file:
                return not _lock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def write_config(self, meaning: dict[str, Any]) -> None:
        write_json(self.path / "config.json", {"schema": SCHEMA, **meaning})

    def config(self) -> dict[str, Any]:
        try:
            return read_json(self._file("config.json"), config=dict, data=dict)
        except (FileNotFoundError, NotADirectoryError):
            raise FavoritError(f"{self.path} is not a run: it has no config.json; `favorit runs` lists runs") from None

    def result(self) -> dict[str, Any] | None:
        path = self._file("result.json")
        try:
            result = read_json(path, status=str)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return checked_result(result, path)

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.path / "result.json", {"schema": SCHEMA, **result})

    def error(self) -> str | None:
        try:
            return (self.path / "error.txt").read_text(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_error(self, message: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "error.txt", lambda path: path.write_text(message + "\n"))

    def epochs(self) -> list[dict[str, Any]]:
        path = self.path / "epochs.jsonl"
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return []
        return parse_epochs(content, str(path))

    def predictions(self) -> Predictions:
        import numpy as np

        from favorit.training.predictions import summarize

        path = self.path / "predictions.npz"
        try:
            with np.load(path, allow_pickle=False) as saved:
                return summarize(saved["logits"], saved["labels"])
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise FavoritError(
                f"{path} cannot be read ({' '.join(str(error).split())}): delete the run, train again"
            ) from None

    def weights(self, name: str) -> Path:
        return self.path / name

    def check_epochs(self) -> None:
        path = self._file("epochs.jsonl")
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2))
                end = file.read()
        except FileNotFoundError:
            return
        if end not in (b"", b"}\n"):
            raise damaged(path, f"it ends with {end!r}")

    def append_epoch(self, record: dict[str, Any]) -> None:
        with open(self.path / "epochs.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def cut_epochs(self, count: int) -> None:
        """Keeps the first `count` records: those that the checkpoint knows of."""
        path, found = self.path / "epochs.jsonl", self.epochs()
        if len(found) < count:
            raise damaged(path, f"{len(found)} records, where the checkpoint has seen {count} epochs")
        lines = "".join(json.dumps(record) + "\n" for record in found[:count])
        write_atomically(path, lambda temporary: temporary.write_text(lines))

    def checkpoints(self) -> list[Path]:
        """The whole checkpoints, newest last."""
        found = [path for path in self.path.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
        return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))

    def write_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """A folder that `write` fills, renamed into place; then the older ones go."""
        old = self.checkpoints()
        temporary, final = self.path / f"writing-{step}", self.path / f"checkpoint-{step}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            write(temporary)
            for path in temporary.iterdir():
                sync(path)
        except BaseException:  # on a full disk half a checkpoint is in the way
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if final in old:
            return shutil.rmtree(temporary)
        os.replace(temporary, final)
        for path in old:
            shutil.rmtree(path)
        return None

    def _leftovers(self) -> list[Path]:
        return [self.path / name for name in os.listdir(self.path) if _LEFTOVER.fullmatch(name)]

    def tidy(self) -> None:
        """A complete run needs no checkpoint, nor what killed processes left half written, nor an error that was
        mended.
        """
        for path in self._leftovers():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def tidy_unheld(self) -> None:
        # A process may be killed after its result and before it has tidied.
        with suppress(HeldError, OSError):  # in a folder that cannot be written they are in nobody's way
            if self._leftovers():
                with self.lock():
                    self.tidy()


def _take(file: IO[str]) -> bool:
    """An exclusive lock, unless another process has one. Whoever lists runs has a shared one for an instant, which is
    waited for.
    """
    while not _lock(file, fcntl.LOCK_EX):
        if not _lock(file, fcntl.LOCK_SH):
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(0.02)
    return True


def _lock(file: IO[str], kind: int) -> bool:
    """Takes a lock, unless it would have to be waited for."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
