"""The interface of a run on disk: a folder with weights, or a packed file without."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from favorit.errors import FavoritError
from favorit.files import parse_values
from favorit.training.saved import check_epochs

if TYPE_CHECKING:
    from favorit.training.predictions import Predictions


class StoredRun(ABC):
    """A run stored at `path`. `form` is "folder" or "file"."""

    path: Path
    form: str

    @property
    @abstractmethod
    def id(self) -> str:
        """The identifier of the run."""

    @abstractmethod
    def exists(self) -> bool:
        """True if there is a run at `path`, finished or not."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The content of config.json."""

    @abstractmethod
    def result(self) -> dict[str, Any] | None:
        """The content of result.json; None if the run has not ended."""

    @abstractmethod
    def epochs(self) -> list[dict[str, Any]]:
        """The records of the epochs."""

    @abstractmethod
    def check_epochs(self) -> None:
        """Raises an error if the epoch records of a finished run are damaged, without parsing them."""

    @abstractmethod
    def predictions(self) -> Predictions:
        """The test predictions of a complete run."""

    @abstractmethod
    def weights(self, name: str) -> Path:
        """The path of the weights file `name`."""

    @abstractmethod
    def error(self) -> str | None:
        """The error that interrupted the last attempt without failing the run, such as a full disk; None if there was
        none. Rerun to resume.
        """

    @abstractmethod
    def date(self) -> str | None:
        """When a run that does not record its start was written, as text; None if the file does not show it."""

    @abstractmethod
    def held(self) -> bool:
        """True if a process is training the run."""

    @abstractmethod
    def tidy_unheld(self) -> None:
        """Deletes what a complete run does not need, unless a process holds the run."""

    def failed_before(self, result: dict[str, Any]) -> FavoritError:
        """The error for a run that has failed. It is not retried, because the same run would fail again."""
        return FavoritError(f"{self.path} failed before: {result['error']} (delete the {self.form} to retry)")


def utc(seconds: float) -> str:
    """A time in seconds since 1970 as text, such as `2026-11-19T22:54:20+00:00`."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def has_ended(result: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    """True if the run is complete or failed. A pruned run has not ended: it can be resumed."""
    return result is not None and result["status"] != "pruned"


def parse_epochs(content: bytes, path: str) -> list[dict[str, Any]]:
    """The records in the lines of epochs.jsonl. A last line truncated by a kill is ignored."""
    whole, _, _ = content.rpartition(b"\n")
    return check_epochs(parse_values(b"[" + b",".join(whole.splitlines()) + b"]", path), path)
