"""What tuning says while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Planned:
    """The study has `over` of its `trials` behind it."""

    trials: int
    over: int


@dataclass(frozen=True)
class Began:
    """A worker took a trial up; `again` where another process had begun it and died."""

    number: int
    values: dict[str, Any]
    again: bool


@dataclass(frozen=True)
class Trained:
    """The trial has done `share` of its epochs; `accuracy` is the validation accuracy of an epoch that just ended."""

    number: int
    share: float
    accuracy: float | None = None


@dataclass(frozen=True)
class Over:
    """The trial is complete, pruned or failed."""

    number: int
    state: str
    values: tuple[float, ...] | None
    error: str | None


TuneEvent = Planned | Began | Trained | Over
