"""Training: one loop, runs on disk, and the weights that come out of them.

What reads run folders needs no torch: the names that do are imported when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step

if TYPE_CHECKING:
    from favorit.training.loaded import load
    from favorit.training.run import Run, train

__all__ = ["Begin", "Checkpoint", "End", "Epoch", "Event", "Run", "Step", "load", "train"]


_HOMES = {"Run": "run", "train": "run", "load": "loaded"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'favorit.training' has no attribute {name!r}")
    return getattr(import_module(f"favorit.training.{_HOMES[name]}"), name)
