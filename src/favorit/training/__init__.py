"""Training: one loop, runs on disk, and the weights that come out of them.

What reads run folders needs no torch: the names that do are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from favorit.lazy import lazy
from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step

if TYPE_CHECKING:
    from favorit.training.inference import load
    from favorit.training.run import Run, train

__all__ = ["Begin", "Checkpoint", "End", "Epoch", "Event", "Run", "Step", "load", "train"]

__getattr__ = lazy(
    __name__, {"Run": "favorit.training.run", "train": "favorit.training.run", "load": "favorit.training.inference"}
)
