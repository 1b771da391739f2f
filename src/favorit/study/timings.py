"""Timed steps of models, remembered for each machine in the user's cache folder.

There is one file for each combination of hardware, number of threads and versions. It may be deleted at any time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
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
    """The costs of steps on `threads` threads of this machine, by `shape`.

    They are read from the cache folder unless `again` is true, and stored after each `add`. A file that cannot be read
    counts as empty, and a folder that cannot be written is not used.
    """

    def __init__(self, threads: int, *, again: bool = False) -> None:
        self.threads = threads
        self._machine = {"favorit": __version__, **measure.fingerprint(), "threads": threads}
        self._path = cache_folder() / "timings" / f"{identify(self._machine)}.json"
        self._costs = self._stored()
        self._known = set[str]() if again else set(self._costs)

    def missing(self, configs: Iterable[RunConfig]) -> list[RunConfig]:
        """The configurations to time: one of each shape that has no cost yet."""
        by_shape: dict[str, RunConfig] = {}
        for config in configs:
            by_shape.setdefault(shape(config), config)
        return [config for key, config in by_shape.items() if key not in self._known]

    def __getitem__(self, config: RunConfig) -> StepCost:
        return self._costs[shape(config)]

    def add(self, config: RunConfig, cost: StepCost) -> None:
        """Stores the cost of a step, next to those that other processes have stored in the meantime."""
        key = shape(config)
        self._costs = {**self._costs, **self._stored(), key: cost}
        self._known.add(key)
        with suppress(OSError):
            os.makedirs(self._path.parent, exist_ok=True)
            write_json(self._path, {"schema": SCHEMA, "machine": self._machine, "steps": self._costs})

    def _stored(self) -> dict[str, StepCost]:
        try:
            steps = read_json(str(self._path))["steps"]
            costs = {key: StepCost(*map(float, cost)) for key, cost in steps.items()}
        except (OSError, FavoritError, KeyError, AttributeError, TypeError, ValueError):  # no file, or a damaged one
            return {}
        return costs if all(0 <= value < float("inf") for cost in costs.values() for value in cost) else {}
