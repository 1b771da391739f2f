from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from favorit.data import split
from favorit.errors import FavoritError

LABELS = torch.arange(1000) % 10


def class_fractions(labels: torch.Tensor, classes: int) -> torch.Tensor:
    return torch.bincount(labels, minlength=classes) / len(labels)


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(12, 60), min_size=2, max_size=6),
    validation=st.one_of(st.floats(0.2, 0.8), st.integers(6, 10)),
    seed=st.integers(0, 2**40),
    subset=st.booleans(),
)
def test_split_is_a_stratified_partition(counts: list[int], validation: float | int, seed: int, subset: bool) -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    kept = len(labels) - 6 if subset else len(labels)
    train, held_out = split(labels, seed=seed, validation=validation, subset=kept if subset else None)
    both = torch.cat([train, held_out])
    assert train.dtype == held_out.dtype == torch.int64
    assert len(both) == kept == len(both.unique())
    assert len(held_out) == (validation if isinstance(validation, int) else round(validation * kept))
    assert torch.equal(train, train.sort().values)
    assert torch.equal(held_out, held_out.sort().values)
    fractions = [class_fractions(labels[part], len(counts)) for part in (held_out, both)]
    off = (fractions[0] - fractions[1]).abs() * len(held_out)
    assert off.max() < 1


@settings(max_examples=20)
@given(counts=st.lists(st.integers(7, 30), min_size=2, max_size=5), folds=st.integers(2, 7), seed=st.integers(0, 99))
def test_folds_are_a_stratified_partition(counts: list[int], folds: int, seed: int) -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    parts = [split(labels, seed=seed, folds=folds, fold=fold) for fold in range(folds)]
    assert torch.equal(torch.cat([held_out for _, held_out in parts]).sort().values, torch.arange(len(labels)))
    for train, held_out in parts:
        assert torch.equal(torch.cat([train, held_out]).sort().values, torch.arange(len(labels)))
        least, most = torch.bincount(labels[held_out], minlength=len(counts)), torch.tensor(counts) / folds
        assert (least - most).abs().max() < 1


def test_split_depends_on_the_seed_alone() -> None:
    first, again, other = (split(LABELS, seed=seed, validation=0.1, subset=400) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])


def test_count_subset_and_folds_give_the_published_sizes() -> None:
    train, held_out = split(LABELS, seed=42, validation=100)
    assert (len(train), len(held_out)) == (900, 100)
    assert torch.bincount(LABELS[held_out]).tolist() == [10] * 10
    train, held_out = split(LABELS, seed=42)
    assert torch.equal(train, torch.arange(1000))
    assert len(held_out) == 0
    train, held_out = split(LABELS, seed=42, subset=200, folds=5, fold=4)
    assert (len(train), len(held_out)) == (160, 40)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"validation": 1.0}, "a fraction is below 1"),
        ({"validation": -0.1}, "validation=-0.1 is not valid: a fraction below 1"),
        ({"validation": 1000}, "a count below the 1000 images"),
        ({"validation": True}, "validation=True"),
        ({"validation": 0.0001}, "less than one of 1000 images"),
        ({"validation": 5}, "5 of 1000 images are fewer than the 10 classes"),
        ({"validation": 995}, "the 5 of 1000 images that are left are fewer than the 10 classes"),
        ({"subset": 0}, r"subset=0 is not valid: a count in 1\.\.1000"),
        ({"subset": 1001}, r"subset=1001 is not valid: a count in 1\.\.1000"),
        ({"folds": 5}, "give both"),
        ({"fold": 0}, "give both"),
        ({"folds": 1, "fold": 0}, "at least 2 folds"),
        ({"folds": 5, "fold": 5}, "at least 2 folds"),
        ({"folds": 101, "fold": 0}, "the smallest class has only 100 images"),
    ],
)
def test_invalid_split_is_a_one_line_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FavoritError, match=message) as error:
        split(LABELS, seed=0, **values)
    assert "\n" not in str(error.value)


def test_class_with_one_image_is_rejected() -> None:
    with pytest.raises(FavoritError, match="a class with one image"):
        split(torch.tensor([0] * 10 + [1]), seed=0, validation=0.5)


@pytest.mark.parametrize("size", [991, 995, 999])
def test_nearly_full_subset_leaves_out_images_of_the_largest_classes(size: int) -> None:
    labels = torch.cat([LABELS, torch.tensor([3, 3])])
    kept, held_out = split(labels, seed=1, subset=size + 2)
    assert len(kept.unique()) == size + 2
    assert len(held_out) == 0
    missing = torch.bincount(labels) - torch.bincount(labels[kept])
    assert missing.tolist().count(1) == 1000 - size
    assert missing[3] == 1
    assert torch.equal(kept, split(labels, seed=1, subset=size + 2)[0])
    assert not torch.equal(kept, split(labels, seed=2, subset=size + 2)[0])
