"""The published tables, and their quantities computed from our runs."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import Any

import pytest

from favorit import FavoritError, published
from favorit.published import ABOUT, FLAGS, Reference

ROWS = {
    "hybrids": 90,
    "kernels": 14,
    "kernels_relu_per_class": 11,
    "linear_attention": 18,
    "positions": 18,
    "synthetic_imagenet": 9,
    "vit_variants": 10,
    "vit_variants_sweeps": 13,
}


def every(name: str) -> list[Reference]:
    table = published.read(name)
    return [reference for number in range(1, len(table.rows) + 1) for reference in table.references(number)]


def one(name: str, row: int, quantity: str) -> Reference:
    (found,) = [reference for reference in published.read(name).references(row) if reference.quantity.name == quantity]
    return found


def text(name: str) -> str:
    return files("favorit.published").joinpath(f"{name}.csv").read_text()


def test_all_tables_are_read_with_all_rows():
    assert {name: len(published.read(name).rows) for name in ABOUT} == ROWS


@pytest.mark.parametrize("name", ROWS)
def test_each_number_has_source_place_hardware_and_explained_flags(name):
    for reference in every(name):
        assert reference.source
        assert reference.place
        assert reference.hardware
        assert set(reference.flags) <= set(FLAGS)


@pytest.mark.parametrize("name", ROWS)
def test_every_number_column_has_a_quantity(name):
    """A column without a quantity would never be shown."""
    settings = {"lr", "batch_size", "dropout", "depth", "dim", "heads", "features", "value", "emb_dropout", "m"}
    table, about = published.read(name), ABOUT[name]
    read = {column for quantity in about.quantities for column in quantity.columns} | set(about.scores)
    numbers = {column for row in table.rows for column, cell in row.items() if isinstance(cell, float)}
    assert numbers - settings <= read


def test_low_and_high_columns_are_one_range():
    assert one("vit_variants", 6, "test accuracy").value == (75.0, 78.0)
    assert one("vit_variants", 1, "test accuracy").value == 99.2
    assert one("vit_variants", 6, "epochs to convergence").value == (50.0, 60.0)
    assert one("vit_variants", 9, "epochs to convergence").value == (50.0, math.inf)
    assert one("positions", 1, "training time").value == (3.6, 6.2)


def test_text_of_a_value_shows_number_range_or_open_range():
    texts = [one("vit_variants", row, "epochs to convergence").text for row in (3, 6, 9)]
    assert texts == ["10", "50..60", ">50"]


def test_difference_to_a_range_is_zero_inside_and_the_distance_outside():
    reference = one("vit_variants", 6, "test accuracy")
    assert [reference.difference(ours) for ours in (76.0, 73.5, 80.0)] == [0.0, -1.5, 2.0]
    assert one("vit_variants", 1, "test accuracy").difference(98.2) == pytest.approx(-1.0)
    assert one("vit_variants", 6, "training time per epoch").ratio(15.0) == 0.5


@pytest.mark.parametrize(
    ("table", "row", "quantity", "place"),
    [
        ("vit_variants", 1, "test accuracy", "section 3.8.1, Table 4"),
        ("vit_variants", 10, "test accuracy", "section 5.1.1, Figures 27-29"),
        ("kernels", 10, "test accuracy", "section 6.2.5, Figure 19, and Table 2"),
        ("kernels", 14, "test accuracy", "section 9.3"),
        ("hybrids", 90, "test accuracy", "section 6, Table 2"),
        ("positions", 1, "test accuracy", "section 6.1, Table 1"),
        ("positions", 18, "training time", "section 6.2, Figure 2"),
    ],
)
def test_place_depends_on_row_and_quantity(table, row, quantity, place):
    assert one(table, row, quantity).place == place


def test_flags_combine_quantity_flags_and_row_flags():
    assert one("hybrids", 1, "test accuracy").flags == ("augmented-test", "last-epoch", "text-differs")
    assert one("hybrids", 1, "training time per epoch").flags == ("naive-softmax",)
    assert one("kernels", 11, "test accuracy").flags == ("mixed-precision", "test-tuned", "one-token")
    assert one("kernels", 10, "test accuracy").note == "as above; another table prints 88.46 and 31.5 s"


RESULT: dict[str, Any] = {
    "epochs": 31,
    "steps": 200,
    "train_seconds": 120.0,
    "train_seconds_per_epoch": 4.0,
    "inference_seconds": 2.5,
    "inference_batch": 128,
    "inference_seconds_per_batch": [0.03, 0.001],
    "train_accuracy": 0.9,
    "best_validation_loss": {"value": 0.4, "epoch": 20},
    "validation": {"accuracy": 0.7, "loss": 1.0},
    "test": {"accuracy": 0.75, "loss": 1.0, "precision": [0.5, 0.7], "recall": [0.4, 0.6], "f1": [0.45, 0.65]},
}
EPOCHS = [
    {"test_accuracy": accuracy, "validation_loss": loss} for accuracy, loss in ((0.4, 2.0), (0.745, 1.0), (0.75, 1.5))
]


@pytest.mark.parametrize(
    ("table", "row", "quantity", "ours"),
    [
        ("hybrids", 1, "test accuracy", 75.0),
        ("hybrids", 1, "training accuracy", 90.0),
        ("hybrids", 1, "training time per epoch", 4.0),
        ("hybrids", 1, "inference time per batch of 128", 30.0),
        ("kernels", 2, "inference time, test set", 2.5),
        ("kernels", 2, "best validation loss", 0.4),
        ("kernels", 2, "epochs trained", 31.0),
        ("kernels", 3, "training time", 120.0),
        ("kernels_relu_per_class", 2, "precision, automobile", 70.0),
        ("kernels_relu_per_class", 11, "f1, mean over classes", 55.0),
        ("linear_attention", 1, "validation accuracy", 75.0),
        ("linear_attention", 1, "training time per step", 600.0),
        ("positions", 1, "validation accuracy", 70.0),
        ("positions", 1, "training time", 2.0),
        ("positions", 10, "final validation loss", 1.5),
        # 0.4 x (1.5 + 0.6 x 1 + 0.36 x 2) / (1 - 0.6^3)
        ("positions", 1, "final validation loss, smoothed", 0.4 * (1.5 + 0.6 + 0.72) / (1 - 0.216)),
        ("vit_variants", 1, "initial test accuracy", 40.0),
        ("vit_variants", 1, "epochs to convergence", 2.0),
    ],
)
def test_ours_is_computed_from_result_and_epochs(table, row, quantity, ours):
    assert one(table, row, quantity).quantity.ours(RESULT, EPOCHS) == pytest.approx(ours)


@pytest.mark.parametrize("name", ROWS)
def test_ours_is_none_for_a_result_without_the_keys(name):
    assert {reference.quantity.ours({"status": "complete"}, []) for reference in every(name)} == {None}
    unwatched = [{"test_accuracy": None, "validation_loss": None}]
    assert {
        reference.quantity.ours({"best_validation_loss": None, "validation": None}, unwatched)
        for reference in every(name)
    } == {None}


def test_inference_time_at_another_batch_size_is_none():
    assert (
        one("hybrids", 1, "inference time per batch of 128").quantity.ours({**RESULT, "inference_batch": 256}, [])
        is None
    )


def test_duplicate_row_is_a_one_line_error_and_the_table_is_still_read():
    lines = text("kernels").splitlines()
    with pytest.raises(FavoritError) as error:
        published.parse("kernels", "\n".join([*lines, lines[3]]))
    assert (
        str(error.value)
        == "published table kernels: rows 3 and 15 are both dataset=cifar10 model=performer_elu_1: remove one"
    )
    assert len(published.read("kernels").rows) == 14


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda content: content.replace("vit,95.0,99.2,", "vit,95.0,high,"),
            ", row 1: final_acc_low='high' is not a number",
        ),
        (lambda content: content.replace("50-60", "50-60,7,8", 1), ", row 1: 13 cells, but 11 columns"),
        (lambda content: content.replace("initial_acc", "first_acc"), ": no column initial_acc"),
    ],
)
def test_damaged_table_is_a_one_line_error(damage, message):
    with pytest.raises(FavoritError) as error:
        published.parse("vit_variants", damage(text("vit_variants"))).references(1)
    assert f"published table vit_variants{message}" in str(error.value)
    assert "\n" not in str(error.value)
