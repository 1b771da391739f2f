"""A run on disk as its readers see it, whether it is a folder with weights or one packed file without."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from pydantic_core import from_json

from favorit.errors import FavoritError
from favorit.files import damaged

if TYPE_CHECKING:
    from favorit.training.predictions import Predictions

# What a result must have, by its status.
NEEDED = {"complete": "test", "failed": "error"}


class StoredRun(ABC):
    """The run at `path`, which is a `form`: folder or file."""

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
        """What the run was started with."""

    @abstractmethod
    def result(self) -> dict[str, Any] | None:
        """What the run ended with; None while it has not."""

    @abstractmethod
    def epochs(self) -> list[dict[str, Any]]:
        """The records of the epochs."""

    @abstractmethod
    def check_epochs(self) -> None:
        """An error if the records of a finished run are damaged, without parsing them."""

    @abstractmethod
    def predictions(self) -> Predictions:
        """What a complete run predicted for its test images."""

    @abstractmethod
    def weights(self, name: str) -> Path:
        """The file with weights of that name."""

    @abstractmethod
    def error(self) -> str | None:
        """What ended the last attempt, if that was not a loss of its own: trained again, the run may well complete."""

    @abstractmethod
    def held(self) -> bool:
        """True if some process trains the run now."""

    @abstractmethod
    def tidy_unheld(self) -> None:
        """Removes what a complete run does not need, unless some process holds it."""

    def failed_before(self, result: dict[str, Any]) -> FavoritError:
        """The error for a run that failed. The same run would fail again, so it is not retried unasked."""
        return FavoritError(
            f"{self.path} failed before: {result['error']} (delete the {self.form} to try the same again)"
        )


def has_ended(result: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    """True if nothing is left to train. A pruned run resumes where it stopped."""
    return result is not None and result["status"] != "pruned"


def checked_result(result: dict[str, Any], path: str) -> dict[str, Any]:
    """The same result, if it has what its status needs; `path` is for the error."""
    if (needed := NEEDED.get(result["status"], "status")) not in result:
        raise damaged(path, f"no {needed}")
    return result


def parse_epochs(content: bytes, path: str) -> list[dict[str, Any]]:
    """The records in the lines of epochs.jsonl. A last line cut short by a kill does not count."""
    whole, _, _ = content.rpartition(b"\n")
    try:
        return list(from_json(b"[" + b",".join(whole.splitlines()) + b"]"))
    except ValueError as error:
        raise damaged(path, error) from None
