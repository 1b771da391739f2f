"""Timed steps of models, remembered for each machine in the user's cache folder.

There is one file for each combination of hardware, number of threads and versions. It may be deleted at any time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from favorit import __version__, measure
from favorit.config import RunConfig, identify
from favorit.errors import FavoritError
from favorit.files import SCHEMA, cache_folder, read_json, write_json


class StepCost(NamedTuple):
    """A step with b images takes `fixed` + `slope` b seconds."""

    fixed: float
    slope: float


def shape(config: RunConfig) -> str:
    """An identifier of the fields of a configuration that determine the time of a step."""
    options = config.train
    return identify([config.model.changed(), options.batch_size, options.optimizer, options.precision])


class Timings:
    """The costs of steps on this machine with the current number of threads, by `shape`.

    They are read from the cache folder unless `again` is true, and stored after each `add`. A file that cannot be read
    counts as empty, and a folder that cannot be written is not used.
    """

    def __init__(self, *, again: bool = False) -> None:
        self._machine = {"favorit": __version__, **measure.fingerprint()}
        self._path = cache_folder() / "timings" / f"{identify(self._machine)}.json"
        self._costs = self._stored()
        self._fresh = set[str]() if again else set(self._costs)

    def get(self, config: RunConfig) -> StepCost | None:
        """The cost of a step of this configuration, or None if it must be timed."""
        key = shape(config)
        return self._costs[key] if key in self._fresh else None

    def add(self, config: RunConfig, cost: StepCost) -> None:
        """Stores the cost of a step, next to those that other processes have stored in the meantime."""
        key = shape(config)
        self._costs = {**self._costs, **self._stored(), key: cost}
        self._fresh.add(key)
        with suppress(OSError):
            os.makedirs(self._path.parent, exist_ok=True)
            write_json(self._path, {"schema": SCHEMA, "machine": self._machine, "steps": self._costs})

    def _stored(self) -> dict[str, StepCost]:
        try:
            steps = read_json(str(self._path), steps=dict)["steps"]
            costs = {key: StepCost(*map(float, cost)) for key, cost in steps.items()}
        except (OSError, FavoritError, TypeError, ValueError):  # no file, or a damaged one
            return {}
        return costs if all(0 <= value < float("inf") for cost in costs.values() for value in cost) else {}
