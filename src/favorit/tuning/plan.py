"""The plan of a search: everything that a worker process needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from favorit import measure
from favorit.source import Source
from favorit.tuning.distributions import DISTRIBUTIONS
from favorit.tuning.space import Space


@dataclass(frozen=True)
class Plan:
    """A search: its space and method, where it is stored, and its number of trials.

    `threads` is the total number of threads of all workers. Worker processes import the files `sources`, which register
    components.
    """

    space: Space
    name: str
    out: Path
    trials: int
    sampler: str
    pruner: str
    objectives: tuple[str, ...]
    storage: str | None
    data_dir: Path | None
    accelerator: str
    workers: int
    threads: int
    repeats: int
    sources: tuple[Source, ...] = ()

    @property
    def lock_dir(self) -> Path:
        return self.out / ".tune"

    @property
    def prunes(self) -> bool:
        return len(self.objectives) == 1

    def fixed_settings(self) -> dict[str, Any]:
        """The values that must stay the same when a search resumes.

        They include the machine if latency is an objective, because latencies of two machines cannot be compared.
        """
        return {
            "search space": {key: str(DISTRIBUTIONS.canonical(text)) for key, text in self.space.fields.items()},
            "configuration": self.space.base.changed(),
            "sampler": self.sampler,
            "pruner": self.pruner,
            "objective": list(self.objectives),
            "machine": measure.fingerprint() if "latency" in self.objectives else None,
        }
