"""A small hybrid on published images: loading the files, training, evaluation, prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import favorit
from favorit import RunConfig
from favorit.data import load_dataset
from favorit.training.inference import evaluate
from published_data import published


def test_hybrid_begins_to_learn_handwritten_digits(tmp_path: Path):
    files = published()
    config = RunConfig(
        model=dict(layout="performer_first", performer="relu(m=16)", depth=2),
        data=dict(name="mnist", subset=900, validation=100, augment="crop(1)"),
        train=dict(epochs=1, batch_size=8),
    )
    run = favorit.train(config, out=tmp_path / "runs", data_dir=files)
    assert run.config.model.image_size == (28, 28)
    assert sum(map(sum, run.result["test"]["confusion"])) == 10_000
    assert run.result["test"]["accuracy"] > 0.2  # chance is 0.1 with a standard deviation of 0.003
    assert evaluate(run.path, files)["test"] == run.result["test"]
    test = load_dataset("mnist", files).test
    right = favorit.load(run).probabilities(test.images[:500]).argmax(-1) == test.labels[:500]
    with np.load(run.path / "predictions.npz") as saved:
        assert torch.equal(right, torch.from_numpy(saved["logits"][:500].argmax(1) == saved["labels"][:500]))
