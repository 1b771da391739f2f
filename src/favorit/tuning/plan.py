"""All that a worker needs to know, so that it can be sent to a process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from favorit import measure
from favorit.tuning.distributions import DISTRIBUTIONS
from favorit.tuning.space import Space


@dataclass(frozen=True)
class Plan:
    """A study: what is searched and how, where it is kept, and how many trials it has in all.

    `threads` are those of all workers together.
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

    @property
    def places(self) -> Path:
        """Where locks are."""
        return self.out / ".tune"

    @property
    def prunes(self) -> bool:
        return len(self.objectives) == 1

    def meaning(self) -> dict[str, Any]:
        """What may not change while a study goes on. Latencies mean something on one machine only."""
        return {
            "search space": {key: str(DISTRIBUTIONS.canonical(text)) for key, text in self.space.fields.items()},
            "configuration": self.space.base.changed(),
            "sampler": self.sampler,
            "pruner": self.pruner,
            "objective": list(self.objectives),
            "machine": measure.fingerprint() if "latency" in self.objectives else None,
        }
