from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from favorit.data import Batch, Images, Loader, build_augment, build_preprocess, load_dataset
from favorit.errors import FavoritError

SET = load_dataset("synthetic(size=9, channels=3, classes=4, train=103, test=8)")
PLAIN = build_preprocess(None, SET.mean, SET.std)
FULL = "crop(2)|flip|rotate(10)|cutout(3)|mixup(0.4)|cutmix(1.0)"


def loader(**values: Any) -> Loader:
    augment = build_augment(values.pop("augment", None))
    base = {"batch_size": 12, "seed": 7, "shuffle": True, "preprocess": PLAIN, "classes": 4}
    return Loader(SET.train, values.pop("indices", None), augment=augment, **(base | values))


def same(first: Batch, second: Batch) -> bool:
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in ("images", "targets", "indices"))


def test_epoch_visits_every_sample_once() -> None:
    batches = list(loader().epoch(0))
    assert len(batches) == len(loader()) == 9
    assert [len(batch.indices) for batch in batches] == [12] * 8 + [7]
    assert torch.equal(torch.cat([batch.indices for batch in batches]).sort().values, torch.arange(103))
    for batch in batches:
        assert torch.equal(batch.targets, SET.train.labels[batch.indices])
        assert torch.equal(batch.images, PLAIN(SET.train.images[batch.indices]))


def test_order_depends_on_epoch_and_seed_only() -> None:
    def order(number: int, **values: Any) -> list[int]:
        return torch.cat([batch.indices for batch in loader(**values).epoch(number)]).tolist()

    assert order(0) == order(0) == order(0, batch_size=20)
    assert len({tuple(order(0)), tuple(order(1)), tuple(order(0, seed=8))}) == 3
    assert order(3, shuffle=False) == list(range(103))


def test_indices_and_drop_last_limit_the_samples() -> None:
    indices = torch.arange(3, 100, 3)
    some = loader(indices=indices, drop_last=True)
    seen = torch.cat([batch.indices for batch in some.epoch(0)])
    assert len(some) == 2
    assert len(seen) == len(seen.unique()) == 24
    assert set(seen.tolist()) <= set(indices.tolist())


@pytest.mark.parametrize("augment", [None, FULL])
@pytest.mark.parametrize("start", [0, 1, 5, 8, 9])
def test_resuming_mid_epoch_gives_the_same_batches(augment: str | None, start: int) -> None:
    whole = list(loader(augment=augment).epoch(4))
    rest = list(loader(augment=augment).epoch(4, start))
    assert len(rest) == 9 - start
    assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


@pytest.mark.parametrize("augment", [None, "crop(2)|flip|rotate(10)", FULL])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_together_give_the_batches_of_one_process(augment: str | None, world: int) -> None:
    alone = list(loader(augment=augment).epoch(1))
    ranks = [list(loader(augment=augment, rank=rank, world=world).epoch(1)) for rank in range(world)]
    for number, batch in enumerate(alone):
        parts = [batches[number] for batches in ranks]
        joined = Batch(
            *(torch.cat([getattr(part, name) for part in parts]) for name in ("images", "targets", "indices")), total=0
        )
        assert same(joined, batch)
        assert {part.total for part in parts} == {len(batch.indices)} == {batch.total}
        if len(batch.indices) % world == 0:
            assert len({len(part.indices) for part in parts}) == 1


def test_rank_without_samples_gets_an_empty_batch() -> None:
    last = [list(loader(indices=torch.arange(13), rank=rank, world=2, augment=FULL).epoch(0))[-1] for rank in range(2)]
    assert [len(batch.indices) for batch in last] == [0, 1]
    assert last[0].images.shape == (0, 3, 9, 9)
    assert last[0].targets.shape == (0, 4)
    assert last[1].total == 1


def test_sample_is_augmented_identically_in_any_batch() -> None:
    def by_sample(**values: Any) -> dict[int, Tensor]:
        batches = loader(augment="crop(2)|flip|rotate(10)|cutout(3)", **values).epoch(2)
        return {
            int(index): image for batch in batches for index, image in zip(batch.indices, batch.images, strict=True)
        }

    first, second = by_sample(), by_sample(batch_size=5, indices=torch.arange(50, 80))
    assert all(torch.equal(first[index], image) for index, image in second.items())


def test_mixed_targets_are_the_weights_of_the_two_labels() -> None:
    batch = next(loader(augment="mixup(1.0)").epoch(0))
    assert batch.targets.dtype == torch.float32
    assert torch.allclose(batch.targets.sum(1), torch.ones(12))
    own, partner = SET.train.labels[batch.indices], SET.train.labels[batch.indices.roll(-1)]
    shown = torch.nn.functional.one_hot(own, 4) + torch.nn.functional.one_hot(partner, 4)
    assert bool((batch.targets[shown == 0] == 0).all())
    lam = batch.targets.gather(1, own[:, None])[:, 0]
    images = PLAIN(SET.train.images[batch.indices])
    mixed = lam.view(-1, 1, 1, 1) * images + (1 - lam.view(-1, 1, 1, 1)) * images.roll(-1, 0)
    differ = own != partner
    assert torch.allclose(batch.images[differ], mixed[differ], atol=1e-5)


def test_loading_leaves_the_data_set_unchanged() -> None:
    before = SET.train.images.clone()
    for _ in loader(augment=FULL).epoch(0):
        pass
    assert torch.equal(SET.train.images, before)


def test_preprocessing_normalizes_and_resizes() -> None:
    images = SET.train.images[:5]
    found = PLAIN(images)
    mean, std = (torch.tensor(values)[:, None, None] for values in (SET.mean, SET.std))
    assert torch.allclose(found, (images.float() / 255 - mean) / std, atol=1e-5)
    bigger = build_preprocess("resize(18)", SET.mean, SET.std)
    assert bigger(images).shape == (5, 3, 18, 18)
    assert bigger.output_size((9, 9)) == (18, 18)
    assert PLAIN.output_size((9, 9)) == (9, 9)
    assert build_preprocess("resize(4, 6)|normalise(0.5, 0.5)", SET.mean, SET.std)(images).shape == (5, 3, 4, 6)
    half = build_preprocess("normalise(0.5, 0.5)", SET.mean, SET.std)(images)
    assert torch.allclose(half, images.float() / 127.5 - 1, atol=1e-6)
    assert build_preprocess("normalize(0.5, 0.5)", SET.mean, SET.std) == build_preprocess(
        "normalise(0.5, 0.5)", SET.mean, SET.std
    )
    per_channel = build_preprocess("normalise((0.1, 0.2, 0.3), (1, 2, 4))", SET.mean, SET.std)
    assert (per_channel.mean, per_channel.std) == ((0.1, 0.2, 0.3), (1, 2, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("normalis(0.5, 0.5)", "did you mean 'normalise'"),
        ("normalise(0.5, 0)", "std=0 is not valid"),
        ("normalise((0.5, 0.5), 1)", "2 values do not fit 3 channels"),
        ("resize(0)", "height=0 is not valid"),
    ],
)
def test_invalid_preprocessing_is_named(text: str, message: str) -> None:
    with pytest.raises(FavoritError, match=message):
        build_preprocess(text, SET.mean, SET.std)


def test_invalid_loader_arguments_are_rejected() -> None:
    with pytest.raises(FavoritError, match="cannot be shared equally between 5 processes"):
        loader(world=5)
    with pytest.raises(FavoritError, match="there are only 103 images"):
        loader(batch_size=104, drop_last=True)
    empty = Images(SET.train.images[:0], SET.train.labels[:0])
    with pytest.raises(FavoritError, match="no images"):
        Loader(empty, batch_size=1, seed=0, preprocess=PLAIN)


def test_augmentation_limited_to_classes_changes_only_their_images() -> None:
    plain, rotated, limited = (loader(augment=text) for text in (None, "rotate(40)", "rotate(40, classes=(1, 3))"))
    for before, for_all, after in zip(plain.epoch(0), rotated.epoch(0), limited.epoch(0), strict=True):
        chosen = (before.targets == 1) | (before.targets == 3)
        assert torch.equal(after.images[chosen], for_all.images[chosen])
        assert torch.equal(after.images[~chosen], before.images[~chosen])
        assert not torch.equal(after.images[chosen], before.images[chosen])


def test_augmentation_for_an_unknown_class_is_rejected() -> None:
    with pytest.raises(FavoritError, match=r"classes=4 is not valid: the data have the classes 0\.\.3"):
        loader(augment="flip|rotate(10, classes=(3, 4))")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            "crop(99)",
            r"crop\(padding=99\) is not valid for images of 6 x 9, which could .*: padding is at most 5",
        ),
        ("flip|cutout(7)", r"cutout\(size=7\) is not valid for images of 6 x 9, .*: size is at most 6"),
        ("crop(5)|cutout(6)", None),
    ],
)
def test_step_larger_than_the_image_is_rejected(steps: str, message: str | None) -> None:
    images = Images(torch.zeros((4, 1, 6, 9), dtype=torch.uint8), torch.arange(4))
    preprocess = build_preprocess(None, (0.5,), (0.5,))
    with pytest.raises(FavoritError, match=message) if message else nullcontext():
        Loader(images, batch_size=2, seed=0, preprocess=preprocess, augment=build_augment(steps))
