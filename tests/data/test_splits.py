from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from favorit.data import load_dataset, split
from favorit.errors import FavoritError

LABELS = torch.arange(1000) % 10


MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def sorted_labels(counts: list[int]) -> torch.Tensor:
    """`counts[0]` labels 0, then `counts[1]` labels 1, and so on."""
    return torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])


# Digests of splits by favorit 0.1.0. Changing one of them changes the images of every run with such a split.
PINNED: list[tuple[str, dict[str, Any], str]] = [
    ("digits", {"validation": 0.1}, "48c2aeb51fb1d7e2"),
    ("digits", {"validation": 100, "subset": 287}, "3998cc13725c441a"),
    ("digits", {"folds": 5, "fold": 2, "subset": 250}, "21b4dbce6c72fdaf"),
    ("digits", {"subset": 1435, "validation": 0.25}, "f987a3d723698cd9"),
    ("cifar10", {"validation": 0.1}, "33a920d2fff8ffd3"),
    ("cifar10", {"validation": 100, "subset": 287}, "43cb72e58ea22a5a"),
    ("cifar10", {"folds": 5, "fold": 2, "subset": 250}, "ac52997f697b805e"),
    ("cifar10", {"subset": 49998, "validation": 0.25}, "1fb5c5b3219e5ae7"),
    ("mnist", {"validation": 0.1}, "1088c37555cc90d9"),
    ("mnist", {"validation": 100, "subset": 287}, "3190745e87a72fc9"),
    ("mnist", {"folds": 5, "fold": 2, "subset": 250}, "479e3a1d0d6f860a"),
    ("mnist", {"subset": 59998, "validation": 0.25}, "4385f4318193e990"),
    ("folder", {"validation": 0.1}, "940fb4fe35431679"),
    ("folder", {"validation": 100, "subset": 287}, "04e7a87c1b251e3f"),
    ("folder", {"folds": 5, "fold": 2, "subset": 250}, "ac51769d188bf923"),
    ("folder", {"subset": 288, "validation": 0.25}, "383df3e5ff8739e3"),
]


@pytest.mark.parametrize(("name", "values", "digest"), PINNED)
def test_valid_split_is_pinned(name: str, values: dict[str, Any], digest: str) -> None:
    labels = {
        "digits": load_dataset("digits").train.labels,
        "cifar10": torch.arange(50_000) % 10,
        "mnist": sorted_labels(MNIST),
        "folder": sorted_labels([200, 60, 30]),
    }[name]
    content = b"|".join(part.numpy().tobytes() for part in split(labels, seed=42, **values))
    assert hashlib.sha256(content).hexdigest()[:16] == digest


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
    labels = sorted_labels(counts)
    kept = len(labels) - 6 if subset else len(labels)
    train, held_out = split(labels, seed=seed, validation=validation, subset=kept if subset else None)
    both = torch.cat([train, held_out])
    assert train.dtype == held_out.dtype == torch.int64
    assert len(both) == kept == len(both.unique())
    assert len(held_out) == (validation if isinstance(validation, int) else round(validation * kept))
    assert torch.equal(train, train.sort().values)
    assert torch.equal(held_out, held_out.sort().values)
    share = class_fractions(labels[both], len(counts)) * len(held_out)
    off = (torch.bincount(labels[held_out], minlength=len(counts)) - share).abs()
    # Classes with a share below one image get one, which other classes give.
    assert off.max() < 1 + (1 - share).clamp(min=0).sum()


@settings(max_examples=20)
@given(counts=st.lists(st.integers(7, 30), min_size=2, max_size=5), folds=st.integers(2, 7), seed=st.integers(0, 99))
def test_folds_are_a_stratified_partition(counts: list[int], folds: int, seed: int) -> None:
    labels = sorted_labels(counts)
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
        (
            {"validation": 5},
            r"5 of 1000 images are fewer than the 10 classes: set data.validation to a count in 10\.\.990",
        ),
        (
            {"validation": 995},
            r"the 5 of 1000 that are left are fewer than the 10 classes: set data.validation to a count in 10\.\.990",
        ),
        ({"subset": 0}, r"subset=0 is not valid: a count in 1\.\.1000"),
        ({"subset": 1001}, r"subset=1001 is not valid: a count in 1\.\.1000"),
        ({"folds": 5}, "give both"),
        ({"fold": 0}, "give both"),
        ({"folds": 1, "fold": 0}, "at least 2 folds"),
        ({"folds": 5, "fold": 5}, "at least 2 folds"),
        (
            {"folds": 101, "fold": 0},
            "the smallest class, 0, has only 100 images, fewer than one per fold: add images, or",
        ),
    ],
)
def test_invalid_split_is_a_one_line_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FavoritError, match=message) as error:
        split(LABELS, seed=0, **values)
    assert "\n" not in str(error.value)


def test_class_with_one_image_is_rejected_by_name() -> None:
    with pytest.raises(
        FavoritError, match="the class 'dog' has one training image, which cannot be in validation too: add images"
    ):
        split(torch.tensor([0] * 10 + [1]), seed=0, validation=0.5, classes=("cat", "dog"))
    with pytest.raises(FavoritError, match="the smallest class, 'dog', has only 1 images"):
        split(torch.tensor([0] * 10 + [1]), seed=0, folds=2, fold=0, classes=("cat", "dog"))


@settings(max_examples=150)
@given(
    counts=st.lists(st.one_of(st.integers(1, 4), st.integers(2, 200)), min_size=2, max_size=8),
    validation=st.one_of(st.floats(0.01, 0.99), st.integers(1, 400)),
    folds=st.one_of(st.none(), st.integers(2, 6)),
    subset=st.one_of(st.none(), st.floats(0.05, 1)),
    seed=st.integers(0, 2**40),
)
def test_every_part_has_every_class_or_the_split_is_rejected(
    counts: list[int], validation: float | int, folds: int | None, subset: float | None, seed: int
) -> None:
    labels = sorted_labels(counts)
    size = None if subset is None else max(1, round(subset * len(labels)))
    values: dict[str, Any] = {"validation": validation} if folds is None else {"folds": folds}
    folded = [{}] if folds is None else [{"fold": fold} for fold in range(folds)]
    try:
        parts = [split(labels, seed=seed, subset=size, **values, **fold) for fold in folded]
    except FavoritError:
        total = size or len(labels)
        if size is not None and size >= len(counts):
            kept = split(labels, seed=seed, subset=size)[0]
            assert len(labels[kept].unique()) == len(counts)
            counts = torch.bincount(labels[kept]).tolist()
        few = min(counts) < (folds or 2)  # a class cannot be in all parts
        held_out = round(validation * total) if isinstance(validation, float) else validation
        sizes = folds is None and not len(counts) <= held_out <= total - len(counts)
        assert few or sizes or total < len(counts)
        return
    for train, held_out in parts:
        assert len(labels[train].unique()) == len(labels[held_out].unique()) == len(counts)
        assert len(train) + len(held_out) == len(torch.cat([train, held_out]).unique()) == (size or len(labels))


def test_small_class_gets_an_image_of_each_part_for_one_of_the_largest_class() -> None:
    train, held_out = split(sorted_labels([200, 2]), seed=0, validation=0.2)
    assert torch.bincount(sorted_labels([200, 2])[train]).tolist() == [161, 1]
    assert torch.bincount(sorted_labels([200, 2])[held_out]).tolist() == [39, 1]


def test_class_with_one_image_is_in_every_subset() -> None:
    labels = sorted_labels([20, 1, 20, 1])
    for size in (4, 20, 40, 41, 42):
        kept, _ = split(labels, seed=size, subset=size)
        assert len(kept) == len(kept.unique()) == size
        assert torch.bincount(labels[kept])[[1, 3]].tolist() == [1, 1]


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
