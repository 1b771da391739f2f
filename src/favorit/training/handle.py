"""`Run`: a run on disk, as `favorit.train` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from favorit.config import RunConfig
from favorit.errors import FavoritError, check_path
from favorit.training.find import open_run
from favorit.training.predictions import Predictions
from favorit.training.records import status


@dataclass(frozen=True, repr=False)
class Run:
    """A run on disk: a folder or a packed file.

    Example:
        run = favorit.Run("runs/0123456789abcdef")
        run.result["test"]["accuracy"]
    """

    path: Path

    def __init__(self, path: str | Path) -> None:
        check_path("run", path)
        object.__setattr__(self, "path", Path(path))

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self._summary()}, {self.path}>"

    def _summary(self) -> str:
        """Status, test accuracy and data set. Never raises an error."""
        try:
            run = open_run(self.path)
            if not run.exists():
                return "not found"
            result = run.result()
            accuracy = f", test {result['test']['accuracy']:.2%}" if result and "test" in result else ""
            return f"{status(run, result)}{accuracy} on {run.config()['config']['data']['name']}"
        except (FavoritError, OSError, KeyError, TypeError, ValueError):
            return "damaged"

    @property
    def id(self) -> str:
        """The identifier: a hash of the configuration and the data."""
        return open_run(self.path).id

    @property
    def result(self) -> dict[str, Any]:
        """The result: status, test metrics, times, environment."""
        run = open_run(self.path)
        result = run.result()
        if result is None:
            run.config()  # raises if there is no run at all
            raise FavoritError(f"{self.path} is not finished: train the same configuration again to resume it")
        return result

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The records of the epochs: losses, accuracies and times."""
        return open_run(self.path).epochs()

    @property
    def predictions(self) -> Predictions:
        """Class, confidence and correctness for each test image of a complete run."""
        if (status := self.result["status"]) != "complete":
            raise FavoritError(f"{self.path} is {status}, not complete, so it has no predictions")
        return open_run(self.path).predictions()

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        return RunConfig(**open_run(self.path).config()["config"])
