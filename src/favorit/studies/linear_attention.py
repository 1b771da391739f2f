"""Sun, Shah, "Testing linear-attention Transformers".

Transformer, Linformer and Performers of several kernels on MNIST, CIFAR-10 and CIFAR-100, all trained from scratch.
The Transformer and the Linformer: plain Adam without weight decay, batch 32, normalised by 0.5, 20 epochs on MNIST
and 100 on CIFAR at 72x72; their rate is not stated: 3e-4, which trains 8 blocks of width 256 without warm-up. The
Performer: AdamW 1e-3, decay 1e-4, 20 epochs, batch 128 (MNIST) and 32; its pipeline has a normaliser fitted to the
data (7 non-trainable parameters in its summary), so images are normalised by the mean and deviation of the data set.
The report also has a second recipe that contradicts this one (batch 256 on CIFAR-10 and 32 on MNIST, 30 epochs, MNIST
with 8 heads and 6 layers); the one with the published step times is used.

Positive (hyperbolic) features and ReLU features of m in {16, 32, 64, 128}; deterministic ReLU and EXP, each also
causal; a ResNet stem before a Performer, which it proposes, is `linear-performer-resnet`. CIFAR-100 is named and has
no published row: the Transformer, the Linformer and one Performer. Runs that start from the checkpoint of a trained
softmax Transformer come with conversion. The report's two frameworks differ in size and head: the families are
confounded, within each the mixers are not. Milliseconds a step are in each result beside the published ones.

`small`: 10,000 training images; MNIST 4 epochs, CIFAR-10 8 epochs with the Transformer and the Linformer at 32x32,
patch 4 and depth 4.
"""

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
    """The Transformer and the Linformer, and the controls in the Transformer's place."""
    baseline = f"linear-transformer{SUFFIX[data]}"
    models = product({"model.preset": [baseline, f"linformer{SUFFIX[data]}"]})
    return models + product({"model.preset": [baseline], "model.layout": ["uniform", "none"]})


def performers(data: str, kernels: list[str]) -> Points:
    return product({"model.preset": [f"linear-performer{SUFFIX[data]}"], "model.performer": kernels})


def models(data: str) -> Points:
    """The two families on one data set."""
    first, second = RECIPES[data]
    return Points({"data.name": data}) * (transformers(data) * first + performers(data, KERNELS) * second)


def hundred() -> Points:
    """CIFAR-100: no published row, so one Performer."""
    first, second = RECIPES["cifar100"]
    pair = product({"model.preset": ["linear-transformer", "linformer"]}) * first
    return Points({"data.name": "cifar100"}) * (pair + performers("cifar100", [KERNELS[0]]) * second)


RESNET = Points({"data.name": "cifar10", "model.preset": "linear-performer-resnet"}) * RECIPES["cifar10"][1]


def small() -> Points:
    """The published kernels and one causal form of each, at sizes that two CPU threads train in minutes."""
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


# Published rows -> points. None: the point does not have the field.
PUBLISHED_PRESETS = {"transformer": "linear-transformer", "linformer": "linformer", "performer": "linear-performer"}
RANDOM = {"softmax": "favor(m={:g}, features=hyperbolic)", "relu": "relu(m={:g})"}
DETERMINISTIC = {"softmax": "exp", "relu": "relu"}


def published_point(row: Row) -> dict[str, Any] | str:
    if row["start"] == "checkpoint":
        return "starts from a checkpoint: comes with conversion"
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
    question="Do Linformer and Performers reach the Transformer on small images, and with which features?",
    base={
        "data.preprocess": "normalise(0.5, 0.5)",
        "data.validation": 0,
        "train.select": "last",
        "train.watch": "test",
        "train.schedule": "constant",
        "train.lr": 3e-4,
        "train.epochs": 20,
    },
    points=models("mnist") + models("cifar10") + RESNET + hundred(),
    sound={"data.validation": 0.1, "train.select": "best", "train.watch": None},
    scales={"small": Scale({"data.subset": 10_000}, points=small())},
    flags={
        "published accuracies are called validation; the test images are taken to be meant": ["*"],
        "published step times come from two frameworks on unknown hardware": ["*"],
        "what the report calls deterministic softmax is taken to be the exp kernel without random features: a guess": [
            "*performer=exp*"
        ],
        "rows of relu's projection have the norm sqrt(D) here; how the report draws them is not said": ["*relu(m=*"],
        "the report also describes its Linformer as attention in local windows; ours is the low-rank projection alone": [
            "*linformer*"
        ],
    },
    published=(Published("linear_attention", published_point),),
)
