"""Checkpoints: the state of a run between two steps.

They hold no random state: order, augmentation, dropout and random features are functions of (seed, epoch, step).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from favorit.config import RunConfig, explain
from favorit.errors import FavoritError
from favorit.training.digests import read_checkpoint, read_verified, write_digests

FORMAT = 1
STATE = "state.pt"

Count = Annotated[int, Field(ge=0, strict=True)]
Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]


@dataclass
class Progress:
    """Progress of a run: counts since its start, the best validation score, and sums over the current epoch.

    `weights` are the digests of best.safetensors and best-ema.safetensors by name; older versions did not record them.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    step: Count = 0
    epochs: Count = 0
    best: Finite | None = None
    best_epoch: Count | None = None
    loss_sum: Finite = 0.0
    correct: Count = 0
    seen: Count = 0
    seconds: Finite = 0.0
    weights: dict[str, str] = field(default_factory=dict)

    def begin_epoch(self) -> None:
        self.loss_sum, self.correct, self.seen, self.seconds = 0.0, 0, 0, 0.0


def check_progress(progress: Progress, steps: int, epochs: int) -> None:
    """Raises an error if the progress is impossible for a run of so many epochs of so many steps."""
    done = progress.step - progress.epochs * steps
    if not 0 <= done < steps or progress.epochs > epochs or (done and not progress.seen):
        raise FavoritError(
            f"step {progress.step} after {progress.epochs} epochs, but the run has {epochs} epochs of {steps} steps"
        )


def selected_weights(config: RunConfig) -> str:
    """The name of the file with the weights that validation chose, or with their moving average."""
    return "best.safetensors" if config.train.ema is None else "best-ema.safetensors"


def weight_bytes(model: nn.Module) -> bytes:
    """The state dict, including random features, as a safetensors file."""
    # safetensors and torch do not raise OSError on a full disk, so files are written as bytes.
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()})


def load_weights(model: nn.Module, path: Path, recorded: str | None = None) -> None:
    """Loads the weights of a run. Raises a readable error if they do not fit the model or their digest is not
    `recorded`.
    """
    try:
        content = read_verified(path, recorded)
    except FileNotFoundError:
        raise FavoritError(
            f"{path} is missing: rerun to resume; if the file was removed, delete {path.parent} and train again"
        ) from None
    try:
        _load(model, content, path)
    except FavoritError as error:
        raise FavoritError(f"{error}: restore it, or delete {path.parent} and train again") from None


def _load(model: nn.Module, content: bytes, path: Path) -> None:
    try:
        model.load_state_dict(load(content))
    except (RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise FavoritError(f"{path} is damaged or does not fit this model ({reason})") from None


def save_checkpoint(path: Path, progress: Progress, models: dict[str, nn.Module], stateful: Sequence[Any]) -> None:
    """Writes the weights of each model, the states of optimizers and gradient scaler, the progress, and digests."""
    buffer = io.BytesIO()
    torch.save(
        {"format": FORMAT, "progress": asdict(progress), "states": [part.state_dict() for part in stateful]}, buffer
    )
    files = {f"{name}.safetensors": weight_bytes(model) for name, model in models.items()}
    files[STATE] = buffer.getvalue()
    for name, content in files.items():
        (path / name).write_bytes(content)
    write_digests(path, files)


def load_newest(
    checkpoints: Sequence[Path],
    models: dict[str, nn.Module],
    stateful: Sequence[Any],
    check: Callable[[Progress], None],
) -> tuple[Progress, dict[Path, FavoritError]]:
    """Restores the last usable checkpoint; (its progress, the error of each unusable newer one).

    Without checkpoints, the progress is that of a new run. If there are some and none is usable, raises the error of
    the last one. `check` raises an error for a progress that does not fit the run.
    """
    unusable: dict[Path, FavoritError] = {}
    for path in reversed(checkpoints):
        try:
            return load_checkpoint(path, models, stateful, check), unusable
        except FavoritError as error:
            unusable[path] = error
    if unusable:
        raise next(iter(unusable.values()))
    return Progress(), {}


def load_checkpoint(
    path: Path, models: dict[str, nn.Module], stateful: Sequence[Any], check: Callable[[Progress], None]
) -> Progress:
    """Restores models, optimizers and gradient scaler, and returns the progress. Loads nothing if a file is damaged.

    Only tensors and plain data are unpickled.
    """
    try:
        files = read_checkpoint(path)
        if missing := {*(f"{name}.safetensors" for name in models), STATE} - files.keys():
            raise FavoritError(f"no {', '.join(sorted(missing))}")
        for name, model in models.items():
            _load(model, files[f"{name}.safetensors"], path / f"{name}.safetensors")
        saved = torch.load(io.BytesIO(files[STATE]), weights_only=True)
        if saved["format"] != FORMAT:
            raise ValueError(f"format {saved['format']}, but this version reads {FORMAT}")
        for part, state in zip(stateful, saved["states"], strict=True):
            part.load_state_dict(state)
        progress = TypeAdapter(Progress).validate_python(saved["progress"])
        check(progress)
        return progress
    except Exception as error:  # torch.load can raise almost anything for a damaged file
        reason = explain(error) if isinstance(error, ValidationError) else " ".join(str(error).split())[:500]
        raise FavoritError(
            f"cannot resume from {path} ({reason}): delete that folder to start this run again"
        ) from None
