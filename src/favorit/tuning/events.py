"""The events that `favorit.tune(listen=...)` receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StudyStarted:
    """The search starts or resumes; `finished` of its `trials` are over."""

    trials: int
    finished: int


@dataclass(frozen=True)
class TrialStarted:
    """A worker starts a trial. `resumed`: another process started it and died."""

    number: int
    values: dict[str, Any]
    resumed: bool


@dataclass(frozen=True)
class TrialProgress:
    """The trial has trained `share` of its epochs. `accuracy` is on validation images, at the end of an epoch."""

    number: int
    share: float
    accuracy: float | None = None


@dataclass(frozen=True)
class TrialFinished:
    """The trial is complete, pruned or failed."""

    number: int
    state: str
    values: tuple[float, ...] | None
    error: str | None


TuneEvent = StudyStarted | TrialStarted | TrialProgress | TrialFinished
