"""Checkpoints: the state of a run between two steps.

They hold no random state: order, augmentation, dropout and random features are functions of (seed, epoch, step).
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
    """Progress of a run: counts since its start, the best validation score, and sums over the current epoch."""

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
    """Writes the state dict, including random features, as safetensors."""
    # Written as bytes, because safetensors and torch do not raise OSError on a full disk.
    path.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}))


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads weights that `save_weights` wrote; raises a readable error if they do not fit the model."""
    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise FavoritError(
            f"{path} is missing: rerun to resume; if the file was removed, delete {path.parent} and train again"
        ) from None
    except (RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise FavoritError(
            f"{path} is damaged or does not fit this model ({reason}): restore it or delete {path.parent} to retrain"
        ) from None


def save_checkpoint(path: Path, progress: Progress, models: dict[str, nn.Module], stateful: Sequence[Any]) -> None:
    """Writes the weights of each model, the states of optimizers and gradient scaler, and the progress."""
    for name, model in models.items():
        save_weights(model, path / f"{name}.safetensors")
    buffer = io.BytesIO()
    torch.save(
        {"format": FORMAT, "progress": asdict(progress), "states": [part.state_dict() for part in stateful]}, buffer
    )
    (path / "state.pt").write_bytes(buffer.getvalue())


def load_checkpoint(path: Path, models: dict[str, nn.Module], stateful: Sequence[Any]) -> Progress:
    """Restores models, optimizers and gradient scaler, and returns the progress.

    Only tensors and plain data are unpickled.
    """
    for name, model in models.items():
        load_weights(model, path / f"{name}.safetensors")
    try:
        saved = torch.load(path / "state.pt", weights_only=True)
        if saved["format"] != FORMAT:
            raise ValueError(f"format {saved['format']}, but this version reads {FORMAT}")
        for part, state in zip(stateful, saved["states"], strict=True):
            part.load_state_dict(state)
        return Progress(**saved["progress"])
    except Exception as error:  # torch.load can raise almost anything for a damaged file
        reason = " ".join(str(error).split())[:300]
        raise FavoritError(
            f"cannot resume from {path} ({reason}): delete that folder to start this run again"
        ) from None
