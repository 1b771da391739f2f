"""Guoji, "Improving efficient Vision Transformers with RPEs".

Learned absolute positions plus none, rope2d, irpe_gate or string_gate, with softmax, FAVOR+ and a learned ReLU kernel:
all 12 models on both data sets. The report has no softmax with relative positions.

The report's protocol is sound. It tests the epoch with the best validation accuracy (55,000/5,000 and 45,000/5,000
training and validation images, seed 42) and does not augment test images. The test curve is recorded but not used for
selection. The report does not state optimizer, schedule, dropout and m. Here they are AdamW at 3e-4 with PyTorch's
weight decay of 0.01, cosine, 0.2 and 128. The report's curves come from TensorBoard. To write such curves, raw and
smoothed, run `favorit study run positions --tensorboard`. Each result has the total training time and steps.

Scale `small`: CIFAR-10, 10,000 training images, 7 epochs, all 12 models and the controls."""

from __future__ import annotations

from typing import Any

from favorit.published import Row
from favorit.study import Points, Published, Scale, Study, product

MNIST = Points({"data.name": "mnist", "data.augment": "rotate(10)", "data.validation": 1 / 12, "train.epochs": 20})
CIFAR10 = Points({"data.name": "cifar10", "data.augment": "flip|crop(4)", "data.validation": 0.1, "train.epochs": 100})
MODELS = product(
    {
        "model.preset": [
            f"position-{mixer}-{relative}"
            for mixer in ("softmax", "favor", "relu")
            for relative in ("none", "rope2d", "irpe", "string")
        ]
    }
)
# With layout=none a class token never sees the image, so one point uses the mean of the tokens.
CONTROLS = Points({"model.preset": "position-softmax-none"}) * Points(
    {"model.layout": "uniform"}, {"model.layout": "none"}, {"model.layout": "none", "model.head": "mean"}
)


# Maps published rows to points. The value None means that the point does not set the field.
def published_point(row: Row) -> dict[str, Any]:
    relative = str(row["position"]).removesuffix("_gate")
    return {
        "data.name": row["dataset"],
        "model.preset": f"position-{row['attention']}-{relative}",
        "model.layout": None,
    }


STUDY = Study(
    name="positions",
    question="Do relative positions help, and do they help linear attention more than softmax?",
    base={
        "train.batch_size": 128,
        "train.drop_last": True,
        "train.optimizer": "adamw",
        "train.lr": 3e-4,
        "train.weight_decay": 0.01,
        "train.schedule": "cosine",
        "train.watch": "test",
        "seed": 42,
    },
    points=(MNIST + CIFAR10) * (MODELS + CONTROLS),
    sound={"train.watch": None},
    scales={"small": Scale({"train.epochs": 7, "data.subset": 10_000}, points=CIFAR10 * (MODELS + CONTROLS))},
    flags={
        "layout=none mixes no tokens: a class token never sees the image (chance by construction); head=mean reads all "
        "tokens": ["*layout=none*"],
        "the report leaves details of string_gate open; ours are a guess": ["*string*"],
        "the report does not state optimizer, schedule, dropout and m; ours are AdamW at 3e-4 with decay 0.01, cosine, "
        "0.2 and 128": ["*"],
    },
    published=(Published("positions", published_point),),
)
