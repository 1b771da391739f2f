"""Events that the training loop yields. The listener handles progress bars, logs and pruning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Begin:
    """A run starts in the folder `path`, or resumes there after `step` optimizer steps.

    `notes` are messages about its data, such as skipped files.
    """

    path: str
    step: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One optimizer step: `step` of `steps` in `epoch`, and the running means of the epoch so far."""

    epoch: int
    step: int
    steps: int
    loss: float
    accuracy: float
    lr: float


@dataclass(frozen=True)
class Epoch:
    """One epoch, trained and validated: a line of epochs.jsonl.

    Validation fields are None without validation images. Test fields are None unless `train.watch` is set. `best` is
    True if this epoch's weights were saved; with `train.select=last` or without validation images, always.
    """

    epoch: int
    train_loss: float
    train_accuracy: float
    validation_loss: float | None
    validation_accuracy: float | None
    lr: float
    train_seconds: float
    validation_seconds: float
    best: bool
    test_loss: float | None = None
    test_accuracy: float | None = None
    test_seconds: float | None = None
    scalars: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint is on disk: the run can resume from this step.

    The checkpoint at the end of an epoch has no such event, only Epoch.
    """

    step: int


@dataclass(frozen=True)
class End:
    """The run is complete or pruned; `result` is the content of result.json."""

    result: dict[str, Any]


Event = Begin | Step | Epoch | Checkpoint | End
