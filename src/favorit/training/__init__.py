"""Training: one loop, runs on disk, and the weights that come out of them.

What reads run folders needs no torch: the names that do are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step

if TYPE_CHECKING:
    from favorit.training.loaded import load
    from favorit.training.run import Run, train

__all__ = ["Begin", "Checkpoint", "End", "Epoch", "Event", "Run", "Step", "load", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'favorit.training' has no attribute {name!r}")
    from favorit.training import loaded, run

    return getattr(loaded if name == "load" else run, name)
