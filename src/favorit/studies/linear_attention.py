"""Sun, Shah, "Testing linear-attention Transformers".

Transformer, Linformer and Performers with several kernels on MNIST, CIFAR-10 and CIFAR-100, trained from scratch.

- Transformer and Linformer: Adam without weight decay, batch 32, images normalized by 0.5, 20 epochs on MNIST and 100
  on CIFAR at 72x72. The report states no learning rate. It is 3e-4 here, which trains 8 blocks of width 256 without
  warm-up.
- Performer: AdamW at 1e-3 with decay 1e-4, 20 epochs, batch 128 (MNIST) or 32. The report's pipeline fits a normalizer
  to the data (7 non-trainable parameters in its summary), so images are normalized by the mean and deviation of the
  data set.
- The report has a second recipe that contradicts this one (batch 256 on CIFAR-10 and 32 on MNIST, 30 epochs, MNIST
  with 8 heads and 6 layers). The recipe here is the one with published step times.

Kernels: positive (hyperbolic) features and ReLU features with m in {16, 32, 64, 128}; deterministic ReLU and EXP, each
also causal. `linear-performer-resnet` is the Performer after a ResNet stem that the report proposes. The report
mentions CIFAR-100 without a published row. The study trains the Transformer, the Linformer and one Performer on it.
Runs that start from the checkpoint of a trained softmax Transformer need model conversion, which favorit does not have
yet.

The report trained two families in two frameworks: Transformer and Linformer, and Performers. The families also differ
in model size and head, so compare mixers only within a family. `favorit study status linear-attention --published`
shows milliseconds per step next to the published ones.

Scale `small`: 10,000 training images; 4 epochs on MNIST, 8 on CIFAR-10, where the Transformer and the Linformer have
32x32 images, patch 4 and depth 4."""

from __future__ import annotations

from typing import Any

from favorit.published import Row
from favorit.study import Points, Published, Scale, Study, product

FEATURES = (16, 32, 64, 128)
KERNELS = [
    *(f"favor(m={m}, features=hyperbolic)" for m in FEATURES),
    *(f"relu(m={m})" for m in FEATURES),
    *("relu", "exp", "relu(causal=True)", "exp(causal=True)"),
]
LARGE = {"train.epochs": 100, "data.preprocess": "resize(72)|normalise(0.5, 0.5)"}

TORCH: dict[str, Any] = {"train.optimizer": "adam", "train.weight_decay": 0.0, "train.batch_size": 32}
KERAS: dict[str, Any] = {"train.lr": 1e-3, "train.weight_decay": 1e-4, "data.preprocess": None}
RECIPES: dict[str, tuple[Points, Points]] = {
    "mnist": (Points(TORCH), Points({**KERAS, "train.batch_size": 128})),
    "cifar10": (Points({**TORCH, **LARGE}), Points({**KERAS, "train.batch_size": 32})),
    "cifar100": (Points({**TORCH, **LARGE}), Points({**KERAS, "train.batch_size": 32})),
}
SUFFIX = {"mnist": "-mnist", "cifar10": "", "cifar100": ""}


def transformers(data: str) -> Points:
    """The Transformer, the Linformer, and the Transformer with the control layouts."""
    baseline = f"linear-transformer{SUFFIX[data]}"
    models = product({"model.preset": [baseline, f"linformer{SUFFIX[data]}"]})
    return models + product({"model.preset": [baseline], "model.layout": ["uniform", "none"]})


def performers(data: str, kernels: list[str]) -> Points:
    return product({"model.preset": [f"linear-performer{SUFFIX[data]}"], "model.performer": kernels})


def models(data: str) -> Points:
    """Both families on one data set."""
    first, second = RECIPES[data]
    return Points({"data.name": data}) * (transformers(data) * first + performers(data, KERNELS) * second)


def cifar100() -> Points:
    """CIFAR-100 has no published row: the Transformer, the Linformer and one Performer."""
    first, second = RECIPES["cifar100"]
    pair = product({"model.preset": ["linear-transformer", "linformer"]}) * first
    return Points({"data.name": "cifar100"}) * (pair + performers("cifar100", [KERNELS[0]]) * second)


RESNET = Points({"data.name": "cifar10", "model.preset": "linear-performer-resnet"}) * RECIPES["cifar10"][1]


def small() -> Points:
    """The published kernels and their causal forms, at sizes that two CPU threads train in minutes."""
    kernels = [
        KERNELS[0],
        KERNELS[3],
        "relu(m=64)",
        "relu(m=128)",
        "relu",
        "exp",
        "relu(causal=True)",
        "exp(causal=True)",
    ]
    smaller = {
        **TORCH,
        "model.stem": "patch(4)",
        "model.depth": 4,
        "train.epochs": 8,
        "data.preprocess": "normalise(0.5, 0.5)",
    }
    mnist = Points({"data.name": "mnist", "train.epochs": 4}) * (
        transformers("mnist") * Points(TORCH) + performers("mnist", kernels) * RECIPES["mnist"][1]
    )
    cifar10 = Points({"data.name": "cifar10", "train.epochs": 8}) * (
        performers("cifar10", kernels) * RECIPES["cifar10"][1]
    )
    return Points({"data.name": "cifar10"}) * transformers("cifar10") * Points(smaller) + cifar10 + mnist


# Maps published rows to points. The value None means that the point does not set the field.
PUBLISHED_PRESETS = {"transformer": "linear-transformer", "linformer": "linformer", "performer": "linear-performer"}
RANDOM = {"softmax": "favor(m={:g}, features=hyperbolic)", "relu": "relu(m={:g})"}
DETERMINISTIC = {"softmax": "exp", "relu": "relu"}


def published_point(row: Row) -> dict[str, Any] | str:
    if row["start"] == "checkpoint":
        return "starts from a checkpoint: needs model conversion, which favorit does not have yet"
    data = str(row["dataset"])
    fields = {
        "data.name": data,
        "model.preset": PUBLISHED_PRESETS[str(row["model"])] + SUFFIX[data],
        "model.layout": None,
    }
    if row["kernel"] is None:
        return fields
    kernels = DETERMINISTIC if row["deterministic"] == "yes" else RANDOM
    return {**fields, "model.performer": kernels[str(row["kernel"])].format(row["features"])}


STUDY = Study(
    name="linear-attention",
    question="Do Linformer and Performers match the Transformer on small images, and with which features?",
    base={
        "data.preprocess": "normalise(0.5, 0.5)",
        "data.validation": 0,
        "train.select": "last",
        "train.watch": "test",
        "train.schedule": "constant",
        "train.lr": 3e-4,
        "train.epochs": 20,
    },
    points=models("mnist") + models("cifar10") + RESNET + cifar100(),
    sound={"data.validation": 0.1, "train.select": "best", "train.watch": None},
    scales={"small": Scale({"data.subset": 10_000}, points=small())},
    flags={
        "the report calls its accuracies validation; we treat them as test accuracies": ["*"],
        "published step times come from two frameworks on unknown hardware": ["*"],
        "the report's deterministic softmax is run as the exp kernel without random features: a guess": [
            "*performer=exp*"
        ],
        "the rows of relu's projection have norm sqrt(D) here; the report does not say how it draws them": [
            "*relu(m=*"
        ],
        "the report also describes its Linformer as attention in local windows; ours is only the low-rank projection": [
            "*linformer*"
        ],
    },
    published=(Published("linear_attention", published_point),),
)
