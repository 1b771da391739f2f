"""Guoji, "Improving efficient Vision Transformers with RPEs".

Learned absolute positions plus none, rope2d, irpe_gate or string_gate, with softmax, FAVOR+ and a learned ReLU
kernel. All 12 models on both data sets; the report leaves out softmax with relative positions. Its protocol is sound:
the epoch of the best validation accuracy is tested (55,000/5,000 and 45,000/5,000 images, seed 42), test images are
not augmented; the test curve is recorded beside it and chooses nothing. Unstated: AdamW at 3e-4 with PyTorch's weight
decay of 0.01 and a cosine, dropout 0.2, m 128. Its curves are TensorBoard's: `favorit study run positions
--tensorboard` writes them, raw and smoothed; total minutes and steps are in each result.

`small`: CIFAR-10, 10,000 training images, 7 epochs, all 12 models and the controls.
"""

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
# Without mixing, a class token never sees the image; the mean of the tokens does.
CONTROLS = Points({"model.preset": "position-softmax-none"}) * Points(
    {"model.layout": "uniform"}, {"model.layout": "none"}, {"model.layout": "none", "model.head": "mean"}
)


# Published rows -> points. None: the point does not have the field.
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
        "layout=none mixes no tokens: a class token then never sees the image (chance by construction), head=mean reads all tokens": [
            "*layout=none*"
        ],
        "the details of string_gate are our reading of the report, a guess": ["*string*"],
        "optimiser, schedule, dropout and m are not stated in the report: AdamW 3e-4, decay 0.01, cosine, 0.2, 128 are ours": [
            "*"
        ],
    },
    published=(Published("positions", published_point),),
)
