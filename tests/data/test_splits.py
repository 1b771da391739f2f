from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from favorit.data import split
from favorit.errors import FavoritError

LABELS = torch.arange(1000) % 10


def shares(labels: torch.Tensor, classes: int) -> torch.Tensor:
    return torch.bincount(labels, minlength=classes) / len(labels)


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(12, 60), min_size=2, max_size=6),
    validation=st.one_of(st.floats(0.2, 0.8), st.integers(6, 10)),
    seed=st.integers(0, 2**40),
    subset=st.booleans(),
)
def test_a_split_is_a_stratified_partition(counts: list[int], validation: float | int, seed: int, subset: bool) -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    kept = len(labels) - 6 if subset else len(labels)
    train, held = split(labels, seed=seed, validation=validation, subset=kept if subset else None)
    both = torch.cat([train, held])
    assert train.dtype == held.dtype == torch.int64
    assert len(both) == kept == len(both.unique())
    assert len(held) == (validation if isinstance(validation, int) else round(validation * kept))
    assert torch.equal(train, train.sort().values)
    assert torch.equal(held, held.sort().values)
    off = (shares(labels[held], len(counts)) - shares(labels[both], len(counts))).abs() * len(held)
    assert off.max() < 1


@settings(max_examples=20)
@given(counts=st.lists(st.integers(7, 30), min_size=2, max_size=5), folds=st.integers(2, 7), seed=st.integers(0, 99))
def test_folds_partition_exactly(counts: list[int], folds: int, seed: int) -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    parts = [split(labels, seed=seed, folds=folds, fold=fold) for fold in range(folds)]
    assert torch.equal(torch.cat([held for _, held in parts]).sort().values, torch.arange(len(labels)))
    for train, held in parts:
        assert torch.equal(torch.cat([train, held]).sort().values, torch.arange(len(labels)))
        least, most = torch.bincount(labels[held], minlength=len(counts)), torch.tensor(counts) / folds
        assert (least - most).abs().max() < 1


def test_the_seed_alone_decides() -> None:
    first, again, other = (split(LABELS, seed=seed, validation=0.1, subset=400) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])


def test_the_published_forms() -> None:
    train, held = split(LABELS, seed=42, validation=100)
    assert (len(train), len(held)) == (900, 100)
    assert torch.bincount(LABELS[held]).tolist() == [10] * 10
    train, held = split(LABELS, seed=42)
    assert torch.equal(train, torch.arange(1000))
    assert len(held) == 0
    train, held = split(LABELS, seed=42, subset=200, folds=5, fold=4)
    assert (len(train), len(held)) == (160, 40)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"validation": 1.0}, "a fraction is below 1"),
        ({"validation": -0.1}, "validation=-0.1: a fraction below 1"),
        ({"validation": 1000}, "a count below the 1000 images"),
        ({"validation": True}, "validation=True"),
        ({"validation": 0.0001}, "less than one of 1000 images"),
        ({"validation": 5}, "5 of 1000 images cannot hold each of 10 classes"),
        ({"validation": 995}, "the 5 of 1000 images that are left cannot hold each of 10 classes"),
        ({"subset": 0}, r"subset=0: a count in 1\.\.1000"),
        ({"subset": 1001}, r"subset=1001: a count in 1\.\.1000"),
        ({"folds": 5}, "give both"),
        ({"fold": 0}, "give both"),
        ({"folds": 1, "fold": 0}, "two folds or more"),
        ({"folds": 5, "fold": 5}, "two folds or more"),
        ({"folds": 101, "fold": 0}, "the smallest class has 100 images"),
    ],
)
def test_bad_values_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FavoritError, match=message) as error:
        split(LABELS, seed=0, **values)
    assert "\n" not in str(error.value)


def test_a_class_with_one_image_cannot_be_split() -> None:
    with pytest.raises(FavoritError, match="a class with one image"):
        split(torch.tensor([0] * 10 + [1]), seed=0, validation=0.5)


@pytest.mark.parametrize("size", [991, 995, 999])
def test_a_subset_of_nearly_all_leaves_out_one_of_the_largest_classes(size: int) -> None:
    labels = torch.cat([LABELS, torch.tensor([3, 3])])
    kept, held = split(labels, seed=1, subset=size + 2)
    assert len(kept.unique()) == size + 2
    assert len(held) == 0
    missing = torch.bincount(labels) - torch.bincount(labels[kept])
    assert missing.tolist().count(1) == 1000 - size
    assert missing[3] == 1
    assert torch.equal(kept, split(labels, seed=1, subset=size + 2)[0])
    assert not torch.equal(kept, split(labels, seed=2, subset=size + 2)[0])
