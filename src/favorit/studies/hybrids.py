"""Bennouna, Yang, Shao, Souaid, "Hybrid Transformer Models with Performer and Regular Attention" (December 2025).

Four layouts of standard and Performer layers x {relu, FAVOR+} x number of features m, on MNIST and CIFAR-10. Model: dim
64, depth 4, 4 heads, patch 4. Recipe: AdamW at 1e-3 (the report's code has no schedule), batch 128, 50 epochs, seed 42;
inference is timed at batch 128. The text mentions m = 8 but publishes no row for it; the grid here includes it.
`--only "data=mnist"` corresponds to the function `full_grid` of the report's code, called for one data set, and
`--only` with a full name to its function `run_one`.

The report's text says that test images are not augmented and that the best test accuracy is reported. Its code augments
them and keeps the last epoch. Results here have three accuracies: `test` (last epoch, augmented), `plain_test` (last
epoch, not augmented) and `best_test` (best epoch, augmented). The report's determinism settings correspond to
`train.deterministic=True`. Its Figures 6 and 7 show times over m. Each result here has the seconds of an epoch and of a
batch. `favorit study status hybrids --published` shows them for runs that did not share the machine.

Scale `small`: CIFAR-10, 10,000 training images, 10 epochs. It has every layout with both kernels at m = 32 and 128,
all_performer with m from 8 to 512, the baseline and the controls."""

from __future__ import annotations

from typing import Any

from favorit.published import Row
from favorit.study import Points, Published, Scale, Study, product

DATA = {
    "mnist": Points({"data.name": "mnist", "data.augment": "rotate(5)", "data.preprocess": "normalise(0.5, 0.5)"}),
    "cifar10": Points(
        {
            "data.name": "cifar10",
            "data.augment": "flip|rotate(5)",
            "data.preprocess": "normalise((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))",
        }
    ),
}
FEATURES = {"mnist": (8, 16, 32, 64, 128, 256), "cifar10": (8, 16, 32, 64, 128, 256, 512)}
LAYOUTS = ["all_performer", "intertwined", "performer_first", "standard_first"]
# With layout=none a class token never sees the image, so one point uses the mean of the tokens.
BASELINES = product({"model.layout": ["all_standard", "uniform", "none"]}) + Points(
    {"model.layout": "none", "model.head": "mean"}
)


def performers(*features: int) -> list[str]:
    """Both kernels with each of these numbers of features."""
    return [f"{kernel}(m={m})" for kernel in ("relu", "favor") for m in features]


def grid(data: str) -> Points:
    """Every layout with every kernel and m, the baseline, and the controls."""
    mixed = product({"model.layout": LAYOUTS, "model.performer": performers(*FEATURES[data])})
    return DATA[data] * (mixed + BASELINES)


SMALL = DATA["cifar10"] * (
    BASELINES
    + product({"model.layout": LAYOUTS, "model.performer": performers(128, 32)})
    + product({"model.layout": ["all_performer"], "model.performer": performers(8, 16, 64, 256, 512)})
)

# Maps published rows to points. The value None means that the point does not set the field.
PERFORMERS = {"relu": "relu", "softmax": "favor"}  # the report's name -> our name


def published_point(row: Row) -> dict[str, Any]:
    performer = f"{PERFORMERS[str(row['kernel'])]}(m={row['m']:g})" if row["kernel"] else None
    return {"data.name": row["dataset"], "model.layout": row["layout"], "model.performer": performer}


def imagenet_point(row: Row) -> str:
    return "times at 224x224 without training: run 'favorit bench speed --preset vit-192-imagenet --layouts all'"


STUDY = Study(
    name="hybrids",
    question="Which layers can be Performers without losing accuracy, and with which kernel and how many features?",
    base={
        "model.preset": "vit-64",
        "train.epochs": 50,
        "train.batch_size": 128,
        "train.test_batch_size": 128,
        "train.optimizer": "adamw",
        "train.lr": 1e-3,
        "train.weight_decay": 1e-4,
        "train.schedule": "constant",
        "train.select": "last",
        "train.watch": "test",
        "data.validation": 0,
        "data.augment_test": True,
        "seed": 42,
    },
    points=grid("mnist") + grid("cifar10"),
    sound={"data.validation": 0.1, "train.select": "best", "train.watch": None, "data.augment_test": False},
    scales={"small": Scale({"train.epochs": 10, "data.subset": 10_000}, points=SMALL)},
    flags={
        "published accuracies were measured on augmented test images (the report's code; its text says otherwise); "
        "plain_test has our accuracy without augmentation": ["*"],
        "published accuracies are from the last epoch (the report's code); the report's text says the best test epoch, "
        "whose accuracy is best_test here": ["*"],
        "published times use a naive softmax; here softmax is PyTorch's fused implementation": ["*"],
        "layout=none mixes no tokens: a class token never sees the image (chance by construction); head=mean reads all "
        "tokens": ["*layout=none*"],
        "the rows of relu's projection have norm sqrt(D) here; the package that the report used draws random norms": [
            "*relu*"
        ],
        "the normalizer in the report's equation 4 omits the keys, a typo: ours is phi(Q) phi(K)^T 1": ["*"],
    },
    published=(Published("hybrids", published_point), Published("synthetic_imagenet", imagenet_point)),
)
