"""A user's study that registers a kernel. The kernel's default width comes from a module in the same folder."""

from __future__ import annotations

from dataclasses import dataclass

from rising_width import WIDTH
from torch import Tensor

from favorit.attention.kernels.pointwise import pointwise
from favorit.study import Study, product


@dataclass
class Level:
    value: float


@pointwise
def rising(x: Tensor, width: float = WIDTH) -> Tensor:
    """f(x) = 1 + x / (width + |x|)."""
    return Level(1.0).value + x / (width + x.abs())


STUDY = Study(
    name="rising",
    question="Does a custom kernel train like a built-in one?",
    base={
        "data.name": "synthetic(size=8, classes=3, train=96, test=48)",
        "model.stem": "patch(4)",
        "model.dim": 8,
        "model.heads": 2,
        "model.depth": 2,
        "model.mlp_dim": 16,
        "train.batch_size": 16,
        "train.epochs": 1,
    },
    points=product({"model.layout": ["rising(width=0.5)", "rising(m=8)|softmax"], "seed": [0, 1]}),
)
