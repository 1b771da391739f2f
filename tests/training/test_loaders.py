"""The images of a run: what is tested, and what says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from favorit import FavoritError
from favorit.training.loaders import build_loaders, class_weights
from training_helpers import fit, resolved, tiny


def parts(**data):
    config, found = resolved(tiny(data=data))
    return build_loaders(config, found, 0, 1), found


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
    first = build_loaders(config, data, 0, 1).test
    other = build_loaders(config.replace(seed=5), data, 0, 1).test
    assert torch.equal(first.indices, other.indices)
    assert len(first.indices) == 12
    assert torch.bincount(data.test.labels[first.indices]).tolist() == [4, 4, 4]


def test_nothing_is_mixed_in_a_test():
    with pytest.raises(FavoritError, match=r"augment_test=True with data.augment='flip\|mixup\(0.2\)'"):
        parts(augment="flip|mixup(0.2)", augment_test=True)


def test_augmented_test_for_some_classes_is_rejected():
    with pytest.raises(FavoritError, match=r"a step for some classes would tell the model the label"):
        parts(augment="flip(classes=(1,))", augment_test=True)


def test_class_weights_by_hand_have_a_mean_of_1_over_images():
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    found = class_weights(labels, 3, (1.0, 3.0, 0.5))
    torch.testing.assert_close(found, torch.tensor([1.0, 3.0, 0.5]) * 6 / 7)
    assert found[labels].mean().item() == pytest.approx(1.0)
    torch.testing.assert_close(class_weights(labels, 3, (2.0, 6.0, 1.0)), found)
    torch.testing.assert_close(class_weights(labels, 3, (1 / 3, 1.0, 1 / 2)), class_weights(labels, 3))


def test_class_weights_of_another_number_of_classes_are_rejected():
    with pytest.raises(
        FavoritError, match=r"train\.class_weights has 2 weights, the data have 3 classes: give one for each class"
    ):
        class_weights(torch.tensor([0, 1, 2]), 3, (1.0, 2.0))


def test_results_say_what_they_were_tested_on(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(data=dict(test_subset=12, augment="flip", augment_test=True), train=dict(epochs=1)))
    assert run.result["flags"] == ["augmented-test", "test-subset"]
    assert sum(map(sum, run.result["test"]["confusion"])) == 12
    plain, _ = fit(tmp_path, tiny(train=dict(epochs=1)))
    assert plain.result["flags"] == []
