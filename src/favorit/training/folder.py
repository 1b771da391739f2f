"""A run as a folder. A kill at any moment leaves every file complete or absent. Only epochs.jsonl can end with a
truncated line, which is ignored.

config.json              written first
lock                     flock
test_files.json          digests of the test images, if the data are files
epochs.jsonl             append-only
checkpoint-<step>/       renamed into place when complete
best.safetensors         weights that `train.select` chose; best-ema.safetensors for their moving average
predictions.npz          test logits and labels
error.txt                why the last attempt stopped
result.json              written last
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from favorit.errors import FavoritError
from favorit.files import SCHEMA, damaged, read_file, read_json, remove, sync, write_atomically, write_json
from favorit.locks import is_held, try_hold
from favorit.training.saved import check_config, check_result, seal
from favorit.training.stored import StoredRun, parse_epochs, utc

if TYPE_CHECKING:
    import numpy as np

    from favorit.training.predictions import Predictions

# Files that a complete run does not need; `write_atomically` makes the names that start with a dot.
_LEFTOVER = re.compile(r"(checkpoint|writing)-[0-9]+|error\.txt|\..+\.[0-9]+")


class HeldError(FavoritError):
    """Another process is training the run."""


class RunFolder(StoredRun):
    """A run stored in the folder `path`."""

    form = "folder"

    def __init__(self, path: str | Path) -> None:
        self.path = path if isinstance(path, Path) else Path(path)

    @property
    def id(self) -> str:
        return self.path.name

    def exists(self) -> bool:
        return os.path.exists(self._file("config.json"))

    def _file(self, name: str) -> str:
        """The path of a file as text.

        With Path objects, listing thousands of runs would spend a fifth of its time on creating them.
        """
        return f"{self.path}{os.sep}{name}"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the run. The system releases the lock when the process ends, even if it is killed."""
        self.path.mkdir(parents=True, exist_ok=True)
        with try_hold(self.path / "lock") as is_ours:
            if not is_ours:
                reason = "is being trained by another process: wait for it or stop it; `favorit runs` lists all runs"
                raise HeldError(f"{self.path} {reason}")
            yield

    def date(self) -> str | None:
        return utc(os.path.getmtime(self._file("config.json")))

    def held(self) -> bool:
        try:
            return is_held(self._file("lock"))
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def write_config(self, content: dict[str, Any]) -> None:
        write_json(self.path / "config.json", {"schema": SCHEMA, **content, "sha256": seal(content)})

    def config(self) -> dict[str, Any]:
        path = self._file("config.json")
        try:
            return check_config(read_json(path), path)
        except (FileNotFoundError, NotADirectoryError):
            raise FavoritError(f"{self.path} is not a run: it has no config.json; `favorit runs` lists runs") from None

    def result(self) -> dict[str, Any] | None:
        path = self._file("result.json")
        try:
            return check_result(read_json(path), path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.path / "result.json", {"schema": SCHEMA, **result})

    def error(self) -> str | None:
        try:
            return read_file(self._file("error.txt")).decode(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_error(self, message: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "error.txt", lambda path: path.write_text(message + "\n"))

    def epochs(self) -> list[dict[str, Any]]:
        path = self._file("epochs.jsonl")
        try:
            return parse_epochs(read_file(path), path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write_predictions(self, logits: np.ndarray, labels: np.ndarray) -> None:
        import numpy as np

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                np.savez_compressed(file, logits=logits, labels=labels)

        write_atomically(self.path / "predictions.npz", write)

    def predictions(self) -> Predictions:
        import numpy as np

        from favorit.training.predictions import summarize

        path = self.path / "predictions.npz"
        try:
            with np.load(path, allow_pickle=False) as saved:
                return summarize(saved["logits"], saved["labels"])
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise FavoritError(
                f"{path} cannot be read ({' '.join(str(error).split())}): delete the run and train again"
            ) from None

    def weights(self, name: str) -> Path:
        return self.path / name

    def write_weights(self, name: str, content: bytes) -> None:
        write_atomically(self.path / name, lambda path: path.write_bytes(content))

    def check_epochs(self) -> None:
        path = self._file("epochs.jsonl")
        try:
            end = read_file(path, last=2)
        except (FileNotFoundError, NotADirectoryError):
            return
        if end not in (b"", b"}\n"):
            raise damaged(path, f"it ends with {end!r}")

    def append_epoch(self, record: dict[str, Any]) -> None:
        with open(self.path / "epochs.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def cut_epochs(self, count: int) -> None:
        """Keeps the first `count` records: those up to the checkpoint."""
        path, found = self.path / "epochs.jsonl", self.epochs()
        if len(found) < count:
            raise damaged(path, f"{len(found)} records, but the checkpoint was written after {count} epochs")
        lines = "".join(json.dumps(record) + "\n" for record in found[:count])
        write_atomically(path, lambda temporary: temporary.write_text(lines))

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, newest last."""
        found = [path for path in self.path.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
        return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))

    def write_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Writes a checkpoint: `write` fills a temporary folder, which is renamed into place. Deletes older ones."""
        old = self.checkpoints()
        temporary, final = self.path / f"writing-{step}", self.path / f"checkpoint-{step}"
        remove(temporary)
        temporary.mkdir()
        try:
            write(temporary)
            for path in temporary.iterdir():
                sync(path)
        except BaseException:  # on a full disk, a partial checkpoint would only take space
            remove(temporary)
            raise
        if final in old:
            return remove(temporary)
        os.replace(temporary, final)
        for path in old:
            remove(path)
        return None

    def _leftovers(self) -> list[Path]:
        return [self.path / name for name in os.listdir(self.path) if _LEFTOVER.fullmatch(name)]

    def tidy(self) -> None:
        """Deletes what a complete run does not need: checkpoints, partial files of killed processes, old errors."""
        for path in self._leftovers():
            remove(path)

    def tidy_unheld(self) -> None:
        # A process may have been killed after it wrote the result and before it tidied.
        with suppress(HeldError, OSError):  # in a read-only folder the leftovers stay
            if self._leftovers():
                with self.lock():
                    self.tidy()
