"""Ding, Wang, Yang, Qin, Hao, "Problem 1: Vision Transformers".

ViT, SimpleViT and three Performers on MNIST and CIFAR-10, and four sweeps of Performer-ReLU.

- Recipe (a), for all five models: AdamW, cosine annealing, 100 epochs, accuracy of the last epoch. The learning rate is
  1e-4 in the sweeps. The main table's numbers of Performer-ReLU fit a learning rate of 1e-3, which is used here.
- Recipe (b), for the small Performers: Adam, early stopping on validation accuracy. The report states no patience; it
  is 10 epochs here.
- The sweeps are on CIFAR-10. The sweeps over depth, dim and learning rate share one point, which has three published
  accuracies. The sweeps over learning rate and dropout start from the model of the main table.
- The report mentions no augmentation (none here) and no weight decay (PyTorch's defaults: 0.01 for AdamW, 0 for Adam).

Two more models have no published row: `vit`, the exact model of the report's Table 1, and `performer-relu-local`, the
local and global mixing proposed in its section 6.

Scale `small`: CIFAR-10, 10,000 training images, 8 epochs; all models, both recipes, the controls, and the sweeps."""

from __future__ import annotations

from typing import Any

from favorit.published import Row
from favorit.study import Points, Published, Scale, Study, product

CIFAR10 = Points({"data.name": "cifar10"})
DATA = Points({"data.name": "mnist"}) + CIFAR10


def relu(**changes: Any) -> dict[str, Any]:
    """A Performer-ReLU of recipe (a). `changes` override the values that the sweeps vary."""
    values = {"depth": 6, "dim": 128, "lr": 1e-4, "dropout": 0.1, **changes}
    return {
        "model.preset": "performer-relu",
        "model.depth": values["depth"],
        "model.dim": values["dim"],
        "train.lr": values["lr"],
        "model.dropout": values["dropout"],
        "model.emb_dropout": values["dropout"],
    }


MODELS = product({"model.preset": ["vit-128", "simple-vit", "performer-exp", "performer-ftheta"]}) + Points(
    relu(lr=1e-3)
)
UNPUBLISHED = Points({"model.preset": "vit"}, {"model.preset": "performer-relu-local", "train.lr": 1e-3})
SMALL_MODELS = product(
    {"model.preset": ["performer-relu-small", "performer-exp-small", "performer-ftheta-small"]}
) * Points(
    {
        "train.optimizer": "adam",
        "train.lr": 1e-3,
        "train.weight_decay": 0.0,
        "train.schedule": "constant",
        "data.validation": 0.1,
        "train.select": "best",
        "train.patience": 10,
    }
)
CONTROLS = Points(relu(lr=1e-3)) * product({"model.layout": ["uniform", "none"]})
SWEEPS = (
    Points(*(relu(depth=depth) for depth in (4, 6, 8)))
    | Points(*(relu(dim=dim) for dim in (64, 128, 256)))
    | Points(*(relu(lr=lr) for lr in (1e-3, 1e-4, 3e-5, 1e-5)))
    | Points(*(relu(lr=1e-3, dropout=dropout) for dropout in (0.2, 0.3, 0.4)))
)
ALL = MODELS + UNPUBLISHED + SMALL_MODELS + CONTROLS

# Maps published rows to points. The value None means that the point does not set the field.
PUBLISHED_PRESETS = {
    "vit": "vit-128",
    "simple_vit": "simple-vit",
    "performer_exp": "performer-exp",
    "performer_ftheta": "performer-ftheta",
}


def published_point(row: Row) -> dict[str, Any]:
    model = str(row["model"])
    fields = relu(lr=1e-3) if model == "performer_relu" else {"model.preset": PUBLISHED_PRESETS[model]}
    return {"data.name": row["dataset"], **fields, "model.layout": None, "model.local": None}


def swept_point(row: Row) -> dict[str, Any]:
    swept = {name: row[name] for name in ("depth", "dim", "lr", "dropout")}
    return {"data.name": "cifar10", **relu(**swept), "model.layout": None, "model.local": None}


STUDY = Study(
    name="vit-variants",
    question="How do ViT, SimpleViT and Performers compare, and how do depth, width, learning rate and dropout matter?",
    base={
        "train.epochs": 100,
        "train.batch_size": 64,
        "train.optimizer": "adamw",
        "train.lr": 1e-4,
        "train.weight_decay": 0.01,
        "train.schedule": "cosine",
        "train.select": "last",
        "train.watch": "test",
        "data.validation": 0,
    },
    points=DATA * ALL | CIFAR10 * SWEEPS,
    sound={"data.validation": 0.1, "train.select": "best", "train.watch": None},
    scales={"small": Scale({"train.epochs": 8, "data.subset": 10_000}, points=CIFAR10 * ALL | CIFAR10 * SWEEPS)},
    flags={
        "published accuracies are read from curves of the test set over all epochs": ["*"],
        "the report's exponential features omit |x|^2/2; ours are FAVOR+, which estimate the softmax kernel": [
            "*performer-exp*"
        ],
        "the report's f_theta is W2 gelu(W1 x) without biases, scaling or a positivity constraint; ours has biases, "
        "scaling and a softplus": ["*performer-ftheta*"],
        "the report adds 1e-6 to the denominator of linear attention; ours adds 1e-30 and falls back to the mean": [
            "*performer*"
        ],
    },
    published=(Published("vit_variants", published_point), Published("vit_variants_sweeps", swept_point)),
)
