"""The images of a run: what is tested, and what says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from favorit import FavoritError
from favorit.training.parts import load_parts
from training_helpers import fit, resolved, tiny


def parts(**data):
    config, found = resolved(tiny(data=data))
    return load_parts(config, found, 0, 1), found


def images(loader) -> torch.Tensor:
    return torch.cat([batch.images for batch in loader.epoch(0)])


def test_test_images_are_not_augmented_unless_asked():
    plain, _ = parts()
    augmented, _ = parts(augment="flip|crop(1)")
    asked, _ = parts(augment="flip|crop(1)", augment_test=True)
    assert torch.equal(images(augmented.test), images(plain.test))
    assert not torch.equal(images(asked.test), images(plain.test))
    assert torch.equal(images(asked.validation), images(plain.validation))


def test_a_test_subset_is_stratified_and_the_same_for_every_seed():
    config, data = resolved(tiny(data=dict(test_subset=12)))
    first = load_parts(config, data, 0, 1).test
    other = load_parts(config.replace(seed=5), data, 0, 1).test
    assert torch.equal(first.indices, other.indices)
    assert len(first.indices) == 12
    assert torch.bincount(data.test.labels[first.indices]).tolist() == [4, 4, 4]


def test_nothing_is_mixed_in_a_test():
    with pytest.raises(FavoritError, match=r"augment_test=True with data.augment='flip\|mixup\(0.2\)'"):
        parts(augment="flip|mixup(0.2)", augment_test=True)


def test_results_say_what_they_were_tested_on(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(data=dict(test_subset=12, augment="flip", augment_test=True), train=dict(epochs=1)))
    assert run.result["flags"] == ["augmented-test", "test-subset"]
    assert sum(map(sum, run.result["test"]["confusion"])) == 12
    plain, _ = fit(tmp_path, tiny(train=dict(epochs=1)))
    assert plain.result["flags"] == []
