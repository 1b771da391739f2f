"""Clepper et al.: *Optimizing Image Classification on CIFAR-10 with Transformer Architectures* (Columbia, Fall 2024).

Kernels behind a convolutional backbone on CIFAR-10, in the published form (one token) and with the grid kept as tokens.

Each model has the optimiser, rate, batch and schedule of its own table: StepLR for Adam, cosine for SGD, one-cycle after five warm-up
epochs for GELU. All: crop and flip, stratified 5-fold (this is fold 0 of `data.folds`; `favorit train --folds 5` or `product({"data.fold":
range(5)})` make the others), clipping at 1.0, at most 100 epochs, stopped by 10 without a better validation loss. What is not stated (the
batch of the ViT, both learned kernels but for dropout, SGD and 512 features) follows the ReLU model. The tuning rounds of ELU and GELU are
those of its tables; the controls stand in the model of its best kernel. CIFAR-100 has one published number and no recipe: a fixed schedule
and its last epoch. It used mixed precision on an A100; here 32 bits, because half precision is slower on CPUs. Pretrained starts come with
conversion.
"""

from __future__ import annotations

from typing import Any

from favorit.published import Row
from favorit.study import Points, Published, Study, product

ADAM: dict[str, Any] = {"train.optimizer": "adam", "train.schedule": "step"}
SGD: dict[str, Any] = {"train.optimizer": "sgd", "train.schedule": "cosine", "train.lr": 1.7e-3}
CYCLE: dict[str, Any] = {"train.optimizer": "adam", "train.schedule": "one_cycle", "train.warmup": 5}

RECIPES: dict[str, dict[str, Any]] = {
    "relu": SGD,
    "elu": {"train.optimizer": "adamw", "train.schedule": "step", "train.lr": 5e-4},
    "gelu": {**CYCLE, "train.lr": 6.25e-5},
    "exp": {**ADAM, "train.lr": 1e-3, "train.batch_size": 64},
    "mixture": {**ADAM, "train.lr": 1e-3},
    "learned": SGD,
}

KERNELS = Points(*({"model.preset": f"conv-{name}{form}", **recipe} for name, recipe in RECIPES.items() for form in ("", "-grid")))
VIT = Points({"model.preset": "kernel-vit", **ADAM, "train.lr": 5e-4})
CONTROLS = Points({"model.preset": "conv-gelu-grid", **RECIPES["gelu"]}) * product({"model.layout": ["uniform", "none"]})


def elu(alpha: float, m: int, depth: int, dropout: float, lr: float, batch: int) -> dict[str, Any]:
    """A round of the search for ELU's values."""
    return {
        "model.preset": "conv-elu",
        **ADAM,
        "model.performer": f"elu(m={m}, alpha={alpha}, eps=1e-6, scale=sqrt)",
        "model.stem": f"conv(act=elu, tokens=1, dropout={dropout})",
        "model.depth": depth,
        "model.heads": 16,
        "model.dropout": dropout,
        "train.lr": lr,
        "train.batch_size": batch,
    }


ROUNDS = Points(
    elu(1.0, 128, 1, 0.0, 5e-4, 128),
    elu(0.5, 128, 2, 0.1, 1e-4, 128),
    elu(0.3, 256, 3, 0.2, 5e-5, 64),
    {"model.preset": "conv-gelu", **ADAM, "train.lr": 5e-4, "train.clip": None},
    {"model.preset": "conv-gelu", **CYCLE, "train.lr": 5e-5},
    {"model.preset": "conv-gelu", **CYCLE, "train.lr": 1e-4},
)
HUNDRED = Points(
    {
        "data.name": "cifar100",
        "model.preset": "conv-relu",
        **SGD,
        "data.folds": None,
        "data.fold": None,
        "data.validation": 0,
        "train.select": "last",
        "train.patience": None,
        "train.epochs": 60,
    }
)

# Published rows -> points. None: the point does not have the field.
PUBLISHED_PRESETS = {
    "vit": "kernel-vit",
    "performer_relu": "conv-relu",
    "performer_elu": "conv-elu",
    "performer_gelu": "conv-gelu",
    "performer_exp": "conv-exp",
    "performer_ftheta_mixture": "conv-mixture",
    "performer_ftheta": "conv-learned",
}


def published_point(row: Row) -> dict[str, Any]:
    model = str(row["model"]).rstrip("_123")
    fields = {"data.name": row["dataset"], "model.preset": PUBLISHED_PRESETS[model], "model.layout": None}
    # The rounds of ELU and GELU differ in optimiser and rate.
    tuned = {"train.optimizer": row["optimizer"], "train.lr": row["lr"]} if model in ("performer_elu", "performer_gelu") else {}
    return {**fields, **tuned}


def published_class(row: Row) -> dict[str, Any]:
    return {"data.name": "cifar10", "model.preset": "conv-relu", "model.layout": None}


STUDY = Study(
    name="kernels",
    question="Which kernel serves best behind a convolutional backbone, and does attention do anything there at all?",
    base={
        "data.augment": "crop(4)|flip",
        "data.folds": 5,
        "data.fold": 0,
        "train.epochs": 100,
        "train.batch_size": 128,
        "train.clip": 1.0,
        "train.monitor": "loss",
        "train.patience": 10,
    },
    points=Points({"data.name": "cifar10"}) * (KERNELS + VIT + CONTROLS + ROUNDS) + HUNDRED,
    sound={"data.folds": None, "data.fold": None, "data.validation": 0.1, "train.select": "best"},
    flags={
        "the published values were tuned on the test set": ["kernel-vit", "conv-exp"],
        "the published kernel goes negative, ours is shifted": ["conv-elu", "conv-gelu"],
    },
    published=(Published("kernels", published_point), Published("kernels_relu_per_class", published_class)),
)
