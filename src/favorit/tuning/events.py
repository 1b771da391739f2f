"""The events that `favorit.tune(listen=...)` receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StudyStarted:
    """The search starts or resumes. `finished` of its `trials` have already ended."""

    trials: int
    finished: int


@dataclass(frozen=True)
class TrialStarted:
    """A worker starts a trial. `resumed` is True if a process that died had started the trial before."""

    number: int
    values: dict[str, Any]
    resumed: bool


@dataclass(frozen=True)
class TrialProgress:
    """The trial has trained `share` of its epochs. At the end of an epoch, `accuracy` is the validation accuracy."""

    number: int
    share: float
    accuracy: float | None = None


@dataclass(frozen=True)
class TrialFinished:
    """The trial has ended. `state` is complete, pruned or failed."""

    number: int
    state: str
    values: tuple[float, ...] | None
    error: str | None


TuneEvent = StudyStarted | TrialStarted | TrialProgress | TrialFinished
