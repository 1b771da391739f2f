"""Training: one loop, runs on disk, and the weights that come out of them."""

from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step
from favorit.training.run import Run, load, train

__all__ = ["Begin", "Checkpoint", "End", "Epoch", "Event", "Run", "Step", "load", "train"]
