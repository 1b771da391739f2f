"""The data loaders of a run: augmented tests, test subsets, class weights, flags."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from favorit import FavoritError
from favorit.training.loaders import build_loaders, class_weights
from training_helpers import fit, resolved, tiny


def loaders(**data):
    config, found = resolved(tiny(data=data))
    return build_loaders(config, found, 0, 1), found


def images(loader) -> torch.Tensor:
    return torch.cat([batch.images for batch in loader.epoch(0)])


def test_test_images_are_augmented_only_with_augment_test():
    plain, _ = loaders()
    augmented, _ = loaders(augment="flip|crop(1)")
    tested, _ = loaders(augment="flip|crop(1)", augment_test=True)
    assert torch.equal(images(augmented.test), images(plain.test))
    assert not torch.equal(images(tested.test), images(plain.test))
    assert torch.equal(images(tested.validation), images(plain.validation))


def test_test_subset_is_stratified_and_equal_for_every_seed():
    config, data = resolved(tiny(data=dict(test_subset=12)))
    first = build_loaders(config, data, 0, 1).test
    other = build_loaders(config.replace(seed=5), data, 0, 1).test
    assert torch.equal(first.indices, other.indices)
    assert len(first.indices) == 12
    assert torch.bincount(data.test.labels[first.indices]).tolist() == [4, 4, 4]


def test_augmented_test_with_mixing_is_rejected():
    with pytest.raises(FavoritError, match=r"augment_test=True with data.augment='flip\|mixup\(0.2\)' is not valid"):
        loaders(augment="flip|mixup(0.2)", augment_test=True)


def test_augmented_test_for_some_classes_is_rejected():
    with pytest.raises(FavoritError, match=r"a step limited to some classes reveals the label"):
        loaders(augment="flip(classes=(1,))", augment_test=True)


def test_explicit_class_weights_have_mean_1_over_images():
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    found = class_weights(labels, 3, (1.0, 3.0, 0.5))
    torch.testing.assert_close(found, torch.tensor([1.0, 3.0, 0.5]) * 6 / 7)
    assert found[labels].mean().item() == pytest.approx(1.0)
    torch.testing.assert_close(class_weights(labels, 3, (2.0, 6.0, 1.0)), found)
    torch.testing.assert_close(class_weights(labels, 3, (1 / 3, 1.0, 1 / 2)), class_weights(labels, 3))


def test_class_weights_of_wrong_length_are_rejected():
    with pytest.raises(
        FavoritError, match=r"train\.class_weights has 2 weights, the data have 3 classes: give one for each class"
    ):
        class_weights(torch.tensor([0, 1, 2]), 3, (1.0, 2.0))


def test_result_flags_name_augmented_tests_and_test_subsets(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(data=dict(test_subset=12, augment="flip", augment_test=True), train=dict(epochs=1)))
    assert run.result["flags"] == ["augmented-test", "test-subset"]
    assert sum(map(sum, run.result["test"]["confusion"])) == 12
    plain, _ = fit(tmp_path, tiny(train=dict(epochs=1)))
    assert plain.result["flags"] == []
