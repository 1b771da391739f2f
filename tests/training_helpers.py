"""Helpers for the tests of training: a tiny configuration, functions that train it, bit-exact comparison of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import favorit
from favorit import FavoritError, RunConfig, seeds
from favorit.data import DataSet, load_dataset
from favorit.model import ViT, create_model
from favorit.training import Checkpoint, Event, Run
from favorit.training.engine import Training
from favorit.training.folder import RunFolder
from favorit.training.identity import resolve

DATA = "synthetic(size=8, classes=3, train=96, test=48)"
MODEL: dict[str, Any] = dict(stem="patch(4)", dim=8, heads=2, depth=2, mlp_dim=16)
TRAIN: dict[str, Any] = dict(epochs=2, batch_size=16, lr=0.01)
TIMES = ("train_seconds", "validation_seconds", "test_seconds")
PATIENCE = 600.0  # seconds until a process counts as hanging, even on a slow machine; not a speed limit

# Every source of randomness: dropout, stochastic depth, augmentation, EMA, redrawn random features.
LIVELY: dict[str, Any] = dict(
    model=dict(layout="favor(m=8)|softmax", dropout=0.1, drop_path=0.1),
    data=dict(augment="crop(1)|flip|cutout(2)|mixup(0.4)", validation=0.25),
    train=dict(epochs=3, ema=0.9, redraw=4, clip=1.0, warmup=0.5, label_smoothing=0.1, monitor="loss", batch_size=13),
    seed=1,
)


def plain(**sections: Any) -> dict[str, Any]:
    """The tiny configuration with some fields changed, as a dictionary: model=..., data=..., train=..., seed=..."""
    tiny = dict(model=MODEL, data=dict(name=DATA), train=TRAIN)
    merged: dict[str, Any] = {section: {**values, **sections.pop(section, {})} for section, values in tiny.items()}
    return {**merged, **sections}


def tiny(**sections: Any) -> RunConfig:
    """The tiny configuration with some fields changed."""
    return RunConfig(**plain(**sections))


def fit(out: Path, config: RunConfig, **options: Any) -> tuple[Run, list[Event]]:
    """Trains in this process; (run, events)."""
    events: list[Event] = []
    fixed: dict[str, Any] = dict(accelerator="cpu", progress=False, listen=lambda event, _: events.append(event))
    run = favorit.train(config, out=out, **fixed, **options)
    return run, events


def build_training(out: Path, config: RunConfig, **options: Any) -> Training:
    """The Training of a run, for tests that iterate over its events."""
    from lightning_fabric import Fabric

    data = load_dataset(config.data.name)
    config = resolve(config, data)
    folder = RunFolder(out / "held")
    folder.path.mkdir(parents=True)
    return Training(
        config,
        data,
        first_model(config),
        Fabric(accelerator="cpu", devices=1),
        folder,
        **{**dict(compiled=False, checkpoint_seconds=1e9), **options},
    )


def resolved(config: RunConfig) -> tuple[RunConfig, DataSet]:
    data = load_dataset(config.data.name)
    return resolve(config, data), data


def first_model(config: RunConfig) -> ViT:
    """The untrained model of a resolved configuration."""
    return create_model(config.model, seed=seeds.derive(config.seed, "model"))


def untimed(run: Run) -> list[dict[str, Any]]:
    """The records of the epochs without times, which differ between equal runs."""
    return [{key: value for key, value in record.items() if key not in TIMES} for record in run.epochs]


@dataclass(frozen=True)
class Outcome:
    """Everything that a run produces except times."""

    epochs: list[dict[str, Any]]
    result: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, run: Run) -> Outcome:
        kept = ("status", "epochs", "chosen_epoch", "test", "validation", "parameters", "flops")
        tensors = {
            f"{path.name}/{name}": value
            for path in sorted(run.path.glob("*.safetensors"))
            for name, value in load_file(path).items()
        }
        with np.load(run.path / "predictions.npz") as saved:
            tensors |= {f"predictions/{name}": torch.from_numpy(saved[name]) for name in saved}
        return cls(untimed(run), {key: run.result[key] for key in kept}, tensors)


def assert_bit_equal(found: Outcome, expected: Outcome) -> None:
    assert found.epochs == expected.epochs
    assert found.result == expected.result
    assert found.tensors.keys() == expected.tensors.keys()
    different = [name for name, value in expected.tensors.items() if not torch.equal(found.tensors[name], value)]
    assert different == []


def interrupt(out: Path, config: RunConfig, step: int = 8) -> Path:
    """The folder of a run that was interrupted at a checkpoint."""

    def listen(event: Any, _: Any) -> None:
        if isinstance(event, Checkpoint) and event.step == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(config, out=out, listen=listen, checkpoint_seconds=0)
    (folder,) = out.iterdir()
    return folder


def forget_digests(folder: Path) -> None:
    """Removes the digests of weights and checkpoints, as in runs of older versions."""
    for path in folder.glob("checkpoint-*/sha256.json"):
        path.unlink()
    if (path := folder / "result.json").exists():
        result = json.loads(path.read_text())
        del result["weights"]
        path.write_text(json.dumps(result))


def raises_line(action: Any, *words: str | Path) -> str:
    """Asserts that `action` raises a FavoritError of one line with these words."""
    with pytest.raises(FavoritError) as error:
        action()
    message = str(error.value)
    assert "\n" not in message
    missing = [str(word) for word in words if str(word) not in message]
    assert missing == [], message
    return message


def weights(run: Run, name: str = "best.safetensors") -> dict[str, Tensor]:
    return load_file(run.path / name)


def environment() -> dict[str, str]:
    """Environment of a child process with as many threads as this one, so that its results are bit-equal."""
    return {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "COLUMNS": "200"}


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Starts `python ARGUMENTS` in a new process."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), **options
    )


def finish(process: subprocess.Popen[str], timeout: float = PATIENCE) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a process, which is killed after `timeout` seconds."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, out, err


def pictures(folder: Path, counts: dict[str, int], size: tuple[int, int] = (8, 8), seed: int = 0) -> Path:
    """Writes FOLDER/class/NUMBER.png, `counts[class]` images each: noise around the gray level of the class."""
    generator = np.random.default_rng(seed)
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        level = 40 + 170 * number // max(len(counts) - 1, 1)
        for index in range(count):
            pixels = generator.integers(level - 40, level + 40, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index:03}.png")
    return folder


def files(folder: Path) -> Iterator[tuple[str, int]]:
    """(path, modification time) of every file below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.stat().st_mtime_ns


def photos(folder: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """Writes FOLDER/class/NUMBER.png in several shapes, none of them a square: noise around the level of the class."""
    generator = np.random.default_rng(seed)
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            shape = [(12, 20), (30, 14), (16, 24)][index % 3]
            pixels = generator.integers(60 * number, 60 * number + 80, (*shape, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index:03}.png")
    return folder
