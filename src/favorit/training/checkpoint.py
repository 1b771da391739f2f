"""The state of a run between two steps: what a checkpoint holds.

Random numbers are not part of it: order, augmentation, dropout and features are functions of (seed, epoch, step).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from favorit.errors import FavoritError

FORMAT = 1


@dataclass
class Progress:
    """How far the run is. Sums are those of the epoch under way."""

    step: int = 0
    epochs: int = 0
    best: float | None = None
    best_epoch: int | None = None
    loss_sum: float = 0.0
    correct: int = 0
    seen: int = 0
    seconds: float = 0.0

    def begin_epoch(self) -> None:
        self.loss_sum, self.correct, self.seen, self.seconds = 0.0, 0, 0, 0.0


def save_weights(model: nn.Module, path: Path) -> None:
    """The state dictionary, random features included, as safetensors."""
    # By way of bytes: what safetensors and torch raise themselves on a full disk is no OSError.
    path.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}))


def load_weights(model: nn.Module, path: Path) -> None:
    """The opposite; an error that says what does not fit."""
    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise FavoritError(
            f"{path} is missing: train the run on if it has not got that far; if it was removed, delete {path.parent} and train again"
        ) from None
    except (RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise FavoritError(
            f"{path} does not fit this model, or is damaged: restore it, or delete {path.parent} and train again ({reason})"
        ) from None


def save_checkpoint(path: Path, progress: Progress, models: dict[str, nn.Module], stateful: Sequence[Any]) -> None:
    """Weights of each model, the optimisers (and what scales their gradients), and the progress."""
    for name, model in models.items():
        save_weights(model, path / f"{name}.safetensors")
    buffer = io.BytesIO()
    torch.save(
        {"format": FORMAT, "progress": asdict(progress), "states": [part.state_dict() for part in stateful]}, buffer
    )
    (path / "state.pt").write_bytes(buffer.getvalue())


def load_checkpoint(path: Path, models: dict[str, nn.Module], stateful: Sequence[Any]) -> Progress:
    """Fills models and optimisers, and returns the progress. Nothing but tensors and numbers is ever unpickled."""
    for name, model in models.items():
        load_weights(model, path / f"{name}.safetensors")
    try:
        saved = torch.load(path / "state.pt", weights_only=True)
        if saved["format"] != FORMAT:
            raise ValueError(f"format {saved['format']}, this version reads {FORMAT}")
        for part, state in zip(stateful, saved["states"], strict=True):
            part.load_state_dict(state)
        return Progress(**saved["progress"])
    except Exception as error:  # torch's reader raises whatever damaged bytes lead it to
        reason = " ".join(str(error).split())[:300]
        raise FavoritError(
            f"{path} cannot be resumed from ({reason}): delete that folder to begin this run again"
        ) from None
