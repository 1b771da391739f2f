"""Training: the loop, runs on disk, and inference with their weights.

Modules that only read runs need no torch, so names that need it are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from favorit.lazy import lazy
from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step

if TYPE_CHECKING:
    from favorit.training.handle import Run
    from favorit.training.inference import load
    from favorit.training.run import train

__all__ = ["Begin", "Checkpoint", "End", "Epoch", "Event", "Run", "Step", "load", "train"]

__getattr__ = lazy(
    __name__, {"Run": "favorit.training.handle", "train": "favorit.training.run", "load": "favorit.training.inference"}
)
