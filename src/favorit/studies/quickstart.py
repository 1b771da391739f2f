"""Four Vision Transformers that differ only in their mixer, on the digits that come with scikit-learn. `make demo` runs
this study in one to three minutes, after set-up."""

from __future__ import annotations

from favorit.study import Study, product

STUDY = Study(
    name="quickstart",
    question="Does attention matter on 8x8 digits read pixel by pixel, and does it have to be softmax?",
    base={
        "model.stem": "patch(1)",
        "model.dim": 48,
        "model.depth": 4,
        "model.heads": 4,
        "model.mlp_dim": 96,
        "model.head": "mean",
        "data.name": "digits",
        "data.validation": 0.15,
        "train.epochs": 14,
        "train.batch_size": 64,
        "train.optimizer": "muon",
        "train.lr": 5e-3,
        "train.warmup": 1,
    },
    points=product({"model.layout": ["softmax", "favor(m=64)", "relu(m=64)", "uniform"]}),
    flags={"one seed and 360 test images: differences below 3 points mean nothing": ["*"]},
)
