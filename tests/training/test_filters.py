"""Conditions on the rows of `favorit runs`, and their order."""

from __future__ import annotations

import pytest

from favorit import FavoritError
from favorit.training.filters import find_field, select, sort_rows

TITLES = {"run": "id", "test": "test.accuracy", "s/epoch": "train_seconds_per_epoch"}
ROWS = [
    {"id": "a", "data.name": "cifar10", "train.lr": 0.01, "test.accuracy": 0.7, "seed": 10, "data.folds": None},
    {"id": "b", "data.name": "mnist", "train.lr": 0.001, "test.accuracy": 0.99, "seed": 9, "validation.accuracy": 0.9},
    {
        "id": "c",
        "data.name": "cifar100",
        "train.lr": 0.01,
        "seed": 1,
        "model.layout": "relu(m=8)",
        "date": "2026-11-19",
    },
    {"id": "d", "error": "config.json is damaged"},
]


def selected(*conditions: str) -> str:
    return "".join(row["id"] for row in select(ROWS, conditions, TITLES))


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("data.name=cifar10", "a"),
        ("data=cifar*", "ac"),
        ("data = CIFAR10", "a"),
        ("data!=cifar10", "bcd"),
        ("lr=0.01", "ac"),
        ("lr=1e-2", "ac"),
        ("train.lr<=0.001", "b"),
        ("test>70%", "b"),
        ("test>=70%", "ab"),
        ("test.accuracy<0.9", "a"),
        ("layout=relu(m=*)", "c"),
        ("seed>9", "a"),
        ("date>=2026-11", "c"),
        ("folds=none", "abcd"),
    ],
)
def test_condition_selects_rows(condition: str, ids: str):
    assert selected(condition) == ids


def test_all_conditions_must_hold():
    assert selected("lr=0.01", "data!=cifar10") == "c"


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("layot=x", "unknown field 'layot' of a run: did you mean 'layout'? `favorit runs --json` prints every field"),
        ("tets>1", "unknown field 'tets' of a run: did you mean 'test'? `favorit runs --json` prints every field"),
        ("accuracy>0", "accuracy is the last part of several fields: write one of test.accuracy, validation.accuracy"),
        ("test>half", "--where 'test>half' is not valid: 'half' is not a number"),
        ("test", "--where 'test' is not valid: write FIELD=VALUE, such as data=cifar10"),
        ("=x", "--where '=x' is not valid: write FIELD=VALUE, such as data=cifar10"),
    ],
)
def test_mistake_names_the_fix(condition: str, message: str):
    with pytest.raises(FavoritError) as error:
        select(ROWS, [condition], TITLES)
    assert str(error.value) == message


def test_rows_are_sorted_by_number_with_missing_values_last():
    seeds = find_field("seed", ROWS, TITLES)
    assert [row["id"] for row in sort_rows(ROWS, seeds)] == ["c", "b", "a", "d"]
    assert [row["id"] for row in sort_rows(ROWS, seeds, reverse=True)] == ["a", "b", "c", "d"]
    assert [row["id"] for row in sort_rows(ROWS, "data.name")] == ["a", "c", "b", "d"]


def test_column_title_is_a_field_before_any_run_has_it():
    """No run is finished, so no row has a test accuracy."""
    assert find_field("test", [{"id": "0"}], {"test": "test.accuracy"}) == "test.accuracy"
