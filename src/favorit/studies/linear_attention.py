"""Sun, Shah: *Testing linear-attention Transformers*.

Transformer, Linformer and Performers of several kernels on MNIST and CIFAR-10, all trained from scratch.

The Transformer and the Linformer: Adam, batch 32, 20 epochs on MNIST and 100 on CIFAR-10 at 72x72; their rate is not stated: 3e-4, which
trains 8 blocks of width 256 without warm-up. The Performer: AdamW 1e-3, decay 1e-4, 20 epochs, batch 128 and 32. Positive (hyperbolic)
features and ReLU features of m in {16, 32, 64, 128}; deterministic ReLU and EXP, each also causal. Runs that start from the checkpoint of a
trained softmax Transformer come with conversion. The report's two frameworks differ in size and head: the families are confounded, within
each the mixers are not.
"""

from __future__ import annotations

from typing import Any

from favorit.published import Row
from favorit.study import Points, Published, Study, product

FEATURES = (16, 32, 64, 128)
KERNELS = [
    *(f"favor(m={m}, features=hyperbolic)" for m in FEATURES),
    *(f"relu(m={m})" for m in FEATURES),
    *("relu", "exp", "relu(causal=True)", "exp(causal=True)"),
]

TORCH = {
    "mnist": Points({"train.optimizer": "adam", "train.batch_size": 32}),
    "cifar10": Points(
        {
            "train.optimizer": "adam",
            "train.batch_size": 32,
            "train.epochs": 100,
            "data.preprocess": "resize(72)|normalise(0.5, 0.5)",
        }
    ),
}
KERAS = {
    "mnist": Points({"train.lr": 1e-3, "train.batch_size": 128}),
    "cifar10": Points({"train.lr": 1e-3, "train.batch_size": 32}),
}
SUFFIX = {"mnist": "-mnist", "cifar10": ""}


def models(data: str) -> Points:
    """The two families, the first with the controls."""
    baseline = f"linear-transformer{SUFFIX[data]}"
    first = product({"model.preset": [baseline, f"linformer{SUFFIX[data]}"]})
    first += product({"model.preset": [baseline], "model.layout": ["uniform", "none"]})
    second = product({"model.preset": [f"linear-performer{SUFFIX[data]}"], "model.performer": KERNELS})
    return Points({"data.name": data}) * (first * TORCH[data] + second * KERAS[data])


# Published rows -> points. None: the point does not have the field.
PUBLISHED_PRESETS = {"transformer": "linear-transformer", "linformer": "linformer", "performer": "linear-performer"}
RANDOM = {"softmax": "favor(m={:g}, features=hyperbolic)", "relu": "relu(m={:g})"}
DETERMINISTIC = {"softmax": "exp", "relu": "relu"}


def published_point(row: Row) -> dict[str, Any] | str:
    if row["start"] == "checkpoint":
        return "starts from a checkpoint: comes with conversion"
    data = str(row["dataset"])
    fields = {"data.name": data, "model.preset": PUBLISHED_PRESETS[str(row["model"])] + SUFFIX[data], "model.layout": None}
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
        "train.schedule": "constant",
        "train.lr": 3e-4,
        "train.weight_decay": 1e-4,
        "train.epochs": 20,
    },
    points=models("mnist") + models("cifar10"),
    sound={"data.validation": 0.1, "train.select": "best"},
    flags={
        "published accuracies are called validation; the test images are taken to be meant": ["*"],
        "published step times come from two frameworks": ["*"],
    },
    published=(Published("linear_attention", published_point),),
)
