"""The description of each published table: report, place, hardware, flags, key and quantities.

The numbers are in the CSV files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from favorit.published.quantities import (
    Quantity,
    at,
    batch_milliseconds,
    convergence_epochs,
    epoch_seconds,
    final_validation_loss,
    headline,
    inference_seconds,
    initial_accuracy,
    smoothed_validation_loss,
    step_milliseconds,
)

# The meaning of each flag of a published number or of a run.
FLAGS = {
    "augmented-test": "test images are augmented like training images",
    "called-validation": "the report calls it validation accuracy; we treat it as test accuracy",
    "edited": "config.json was edited after training started: the result may belong to another configuration",
    "last-epoch": "accuracy of the last epoch",
    "mixed-precision": "trained in mixed precision",
    "naive-softmax": "softmax is the naive form, not a fused kernel",
    "one-token": "the model has one token, so attention has no effect",
    "performer-pytorch": "the Performer layers come from the package performer-pytorch",
    "range-of-all": "the report gives one range for all models of the data set",
    "read-off": "rounded; read from curves of test accuracy over all epochs, or from the text",
    "test-selected": "accuracy of the epoch with the best test accuracy",
    "test-subset": "tested on a subset of the test images",
    "test-tuned": "hyperparameters were tuned on the test set",
    "text-differs": "the number follows the report's code; the report's text says that test images are not augmented "
    "and that the best test accuracy is reported",
    "two-frameworks": "the Performers ran in another framework than the Transformer and the Linformer",
    "watched": "the test set was evaluated after each epoch, but not used for selection",
}


@dataclass(frozen=True)
class Rule:
    """A text for the rows that match `where` and the columns in `columns`. An empty field matches everything."""

    text: str
    columns: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)

    def holds(self, row: Mapping[str, object], columns: tuple[str, ...]) -> bool:
        return (not self.columns or columns[0] in self.columns) and all(
            row[name] == value for name, value in self.where.items()
        )


@dataclass(frozen=True)
class About:
    """A published table: `source` has authors, title and date; the first matching rule of `places` is a number's place
    in the report.

    The columns of `key` identify a row. The columns of `scores` have precision, recall and f1 of the class in the row.
    """

    source: str
    hardware: str
    key: tuple[str, ...]
    places: tuple[Rule, ...]
    flags: tuple[Rule, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    scores: tuple[str, ...] = ()


VARIANTS = "Ding, Wang, Yang, Qin, Hao: Problem 1: Vision Transformers"
KERNELS = (
    "Clepper et al.: Optimizing Image Classification on CIFAR-10 with Transformer Architectures (Columbia, Fall 2024)"
)
HYBRIDS = "Bennouna, Yang, Shao, Souaid: Hybrid Transformer Models with Performer and Regular Attention (December 2025)"
LINEAR = "Sun, Shah: Testing linear-attention Transformers"
POSITIONS = "Guoji: Improving efficient Vision Transformers with RPEs"

EPOCH_RANGE = ("train_s_per_epoch_low", "train_s_per_epoch_high")
TEST_RANGE = ("infer_s_low", "infer_s_high")
HYBRID_TIMES = ("train_s_per_epoch", "infer_ms_per_batch")
LOSSES = ("final_val_loss_smoothed", "final_val_loss_raw", "train_minutes")

# The section, figure or table of each model of the kernels report.
KERNEL_PLACES = {
    "vit": "sections 4.4.1 and 9.1",
    "performer_relu": "section 5.5 and Table 1",
    "performer_elu_1": "section 6.1.3, Figure 13",
    "performer_elu_2": "section 6.1.4, Figure 14",
    "performer_elu_3": "section 6.1.5, Figure 15",
    "performer_elu": "section 6.1.6, Figure 16, and Table 1",
    "performer_gelu_1": "section 6.2.2",
    "performer_gelu_2": "section 6.2.3, Figure 17",
    "performer_gelu_3": "section 6.2.4, Figure 18",
    "performer_gelu": "section 6.2.5, Figure 19, and Table 2",
    "performer_exp": "section 7.3",
    "performer_ftheta_mixture": "section 8.3.3",
    "performer_ftheta": "section 8.5, Table 3",
}

ABOUT: dict[str, About] = {
    "vit_variants": About(
        VARIANTS,
        "unknown",
        key=("dataset", "model"),
        places=(
            Rule("section 5.1.2, Figures 30-32", where={"dataset": "mnist", "model": "performer_ftheta"}),
            Rule("section 5.1.1, Figures 27-29", where={"model": "performer_ftheta"}),
            Rule("section 3.8.1", ("convergence_epochs",), {"dataset": "mnist"}),
            Rule("section 3.8.1, Table 4", where={"dataset": "mnist"}),
            Rule("section 3.8.2, Table 5"),
        ),
        flags=(Rule("read-off"),),
        quantities=(
            headline("test accuracy", "final_acc_low", "final_acc_high"),
            Quantity("initial test accuracy", "%", ("initial_acc",), initial_accuracy),
            Quantity("epochs to convergence", "", ("convergence_epochs",), convergence_epochs, depends_on_budget=True),
            epoch_seconds(*EPOCH_RANGE),
            inference_seconds(*TEST_RANGE),
        ),
    ),
    "vit_variants_sweeps": About(
        VARIANTS,
        "unknown",
        key=("sweep", "value"),
        places=(
            Rule("section 4.1, Table 6", where={"sweep": "depth"}),
            Rule("section 4.2, Table 7", where={"sweep": "dim"}),
            Rule("section 4.3, Table 8", where={"sweep": "lr"}),
            Rule("section 4.4, Table 9"),
        ),
        flags=(Rule("read-off"),),
        quantities=(
            headline("test accuracy", "final_acc"),
            epoch_seconds(*EPOCH_RANGE),
            inference_seconds(*TEST_RANGE),
        ),
    ),
    "kernels": About(
        KERNELS,
        "NVIDIA A100",
        key=("dataset", "model"),
        places=(
            Rule("section 9.3", where={"dataset": "cifar100"}),
            *(Rule(place, where={"model": model}) for model, place in KERNEL_PLACES.items()),
        ),
        flags=(Rule("mixed-precision"),),
        quantities=(
            headline("test accuracy", "test_acc"),
            Quantity("best validation loss", "", ("best_val_loss",), at("best_validation_loss.value")),
            Quantity("epochs trained", "", ("epochs",), at("epochs"), depends_on_budget=True),
            epoch_seconds("train_s_per_epoch"),
            Quantity(
                "training time", "s", ("train_s_total",), at("train_seconds"), is_time=True, depends_on_budget=True
            ),
            inference_seconds("infer_s"),
        ),
    ),
    "kernels_relu_per_class": About(
        KERNELS,
        "NVIDIA A100",
        key=("class",),
        places=(Rule("section 5.5, table of classes"),),
        flags=(Rule("mixed-precision"), Rule("one-token")),
        scores=("precision", "recall", "f1"),
    ),
    "hybrids": About(
        HYBRIDS,
        "Apple M3 (MPS)",
        key=("dataset", "layout", "kernel", "m"),
        places=(Rule("section 6, Table 1", where={"dataset": "mnist"}), Rule("section 6, Table 2")),
        flags=(
            Rule("augmented-test", ("final_test_acc",)),
            Rule("last-epoch", ("final_test_acc", "final_train_acc")),
            Rule("text-differs", ("final_test_acc",)),
            Rule("naive-softmax", HYBRID_TIMES),
        ),
        quantities=(
            headline("test accuracy", "final_test_acc"),
            Quantity("training accuracy", "%", ("final_train_acc",), at("train_accuracy", 100)),
            epoch_seconds("train_s_per_epoch"),
            Quantity(
                "inference time per batch of 128", "ms", ("infer_ms_per_batch",), batch_milliseconds(128), is_time=True
            ),
        ),
    ),
    "synthetic_imagenet": About(
        HYBRIDS,
        "NVIDIA T4",
        key=("layout", "kernel", "m"),
        places=(Rule("section 7, Table 3"),),
        flags=(Rule("naive-softmax"), Rule("performer-pytorch")),
        quantities=(
            epoch_seconds("train_s_per_epoch"),
            Quantity(
                "inference time per batch of 64", "ms", ("infer_ms_per_batch",), batch_milliseconds(64), is_time=True
            ),
        ),
    ),
    "linear_attention": About(
        LINEAR,
        "unknown",
        key=("dataset", "model", "features", "kernel", "deterministic", "start"),
        places=(
            Rule("section 4, table MNIST Dataset", where={"dataset": "mnist"}),
            Rule("section 4, table CIFAR10 dataset"),
        ),
        flags=(Rule("called-validation", ("valid_acc",)), Rule("two-frameworks", ("ms_per_step",))),
        quantities=(
            headline("validation accuracy", "valid_acc"),
            Quantity("training time per step", "ms", ("ms_per_step",), step_milliseconds, is_time=True),
        ),
    ),
    "positions": About(
        POSITIONS,
        "NVIDIA A100",
        key=("dataset", "attention", "position"),
        places=(
            Rule("section 6.1, Figure 1", LOSSES, {"dataset": "mnist"}),
            Rule("section 6.1, Table 1", where={"dataset": "mnist"}),
            Rule("section 6.2, Figure 2", LOSSES),
            Rule("section 6.2, Table 2"),
        ),
        flags=(Rule("range-of-all", ("train_minutes",)),),
        quantities=(
            headline("test accuracy", "test_acc"),
            Quantity("validation accuracy", "%", ("val_acc",), at("validation.accuracy", 100)),
            Quantity("final validation loss, smoothed", "", ("final_val_loss_smoothed",), smoothed_validation_loss),
            Quantity("final validation loss", "", ("final_val_loss_raw",), final_validation_loss),
            Quantity(
                "training time",
                "min",
                ("train_minutes",),
                at("train_seconds", 1 / 60),
                is_time=True,
                depends_on_budget=True,
            ),
            inference_seconds("infer_s"),
        ),
    ),
}
