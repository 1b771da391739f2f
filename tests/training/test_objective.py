"""Loss, class weights, clipping, EMA and redrawn features of a training step, against values computed by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from favorit import RunConfig, seeds
from favorit.attention.kernels.random_features import orthogonal_rows
from favorit.data import split
from favorit.training import Epoch, Step
from training_helpers import build_training, first_model, fit, pictures, resolved, tiny, weights

# One step on all images at once: the loss of the epoch is that of the untrained model.
ONCE: dict[str, Any] = dict(
    data=dict(validation=0), train=dict(select="last", epochs=1, batch_size=96, schedule="constant")
)


def once(**sections: Any) -> RunConfig:
    merged = {section: {**ONCE.get(section, {}), **sections.get(section, {})} for section in ("model", "data", "train")}
    return tiny(**merged)


def untrained_log_probabilities(config: RunConfig) -> tuple[Tensor, Tensor]:
    """(log-probabilities of the untrained model for all training images, their labels)."""
    config, data = resolved(config)
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    with torch.no_grad():
        logits = first_model(config)((data.train.images / 255 - mean) / std)
    return logits.double().log_softmax(-1), data.train.labels


def first_loss(tmp_path: Path, config: RunConfig) -> float:
    _, events = fit(tmp_path, config)
    (step,) = (event for event in events if isinstance(event, Step))
    return step.loss


def test_cross_entropy_is_the_mean_over_images(tmp_path: Path):
    logp, labels = untrained_log_probabilities(once())
    expected = -logp[torch.arange(96), labels].mean().item()
    assert first_loss(tmp_path, once()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_label_smoothing_spreads_s_over_all_classes(tmp_path: Path, smoothing):
    """The target is (1 - s) one_hot(label) + s / classes."""
    config = once(train=dict(label_smoothing=smoothing))
    logp, labels = untrained_log_probabilities(config)
    own = logp[torch.arange(96), labels]
    expected = -((1 - smoothing) * own + smoothing * logp.mean(1)).mean().item()
    assert expected == pytest.approx(F.cross_entropy(logp, labels, label_smoothing=smoothing).item())
    assert first_loss(tmp_path, config) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("augment", ["mixup(1.0)", "cutmix(1.0)"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_mixed_labels_give_the_weighted_cross_entropy(tmp_path: Path, augment, smoothing):
    config = once(data=dict(augment=augment), train=dict(label_smoothing=smoothing))
    training = build_training(tmp_path / "one", config)
    (batch,) = training.loader.epoch(0)
    assert ((batch.targets > 0.01).sum(1) == 2).any(), "invalid test case: nothing was mixed"
    with torch.no_grad():
        logp = training.model(batch.images).double().log_softmax(-1)
    targets = (1 - smoothing) * batch.targets + smoothing / 3
    expected = -(targets * logp).sum(1).mean().item()
    assert first_loss(tmp_path / "two", config) == pytest.approx(expected, rel=1e-6)


def test_class_weights_give_every_class_the_same_total_weight(tmp_path: Path):
    """The weights are N / (C count) over the training images."""
    path = pictures(tmp_path / "images", {"common": 40, "rare": 10, "some": 20})
    config = once(data=dict(name=f"folder('{path}', 8)"), train=dict(class_weights=True))
    logp, labels = untrained_log_probabilities(config)
    counts = torch.bincount(labels)
    assert counts.tolist() == [32, 8, 16]
    weight = torch.tensor([56 / (3 * 32), 56 / (3 * 8), 56 / (3 * 16)], dtype=torch.float64)
    training = build_training(tmp_path / "held", config)
    torch.testing.assert_close(training.class_weights, weight.float())
    expected = -(weight[labels] * logp[torch.arange(56), labels]).mean().item()
    assert first_loss(tmp_path / "run", config) == pytest.approx(expected, rel=1e-6)


def test_class_weights_count_only_the_training_part(tmp_path: Path):
    path = pictures(tmp_path / "images", {"common": 40, "rare": 10})
    config = tiny(data=dict(name=f"folder('{path}', 8)", validation=0.25), train=dict(class_weights=True))
    training = build_training(tmp_path / "held", config)
    _, data = resolved(config)
    train, _ = split(data.train.labels, seed=0, validation=0.25)
    counts = torch.bincount(data.train.labels[train])
    torch.testing.assert_close(training.class_weights, len(train) / (2 * counts))
    assert len(train) == 30


def test_explicit_class_weights_weight_the_loss(tmp_path: Path):
    config = once(train=dict(class_weights=(1, 4, 1)))
    logp, labels = untrained_log_probabilities(config)
    weight = torch.tensor([1.0, 4.0, 1.0], dtype=torch.float64)
    weight *= len(labels) / weight[labels].sum()
    expected = -(weight[labels] * logp[torch.arange(96), labels]).mean().item()
    assert first_loss(tmp_path, config) == pytest.approx(expected, rel=1e-6)


def test_weighted_run_learns_the_rare_class(tmp_path: Path):
    path = pictures(tmp_path / "images", {"common": 60, "rare": 10})
    config = tiny(
        data=dict(name=f"folder('{path}', 8)", validation=0.2), train=dict(class_weights=True, epochs=6, lr=0.02)
    )
    run, _ = fit(tmp_path / "runs", config)
    assert run.result["test"]["recall"] == [1.0, 1.0]


# Clipping: without momentum and at learning rate 1, the change of the weights is the (clipped) gradient.
PLAIN: dict[str, Any] = dict(optimizer="sgd(momentum=0.0)", lr=1.0, weight_decay=0.0)


def change(tmp_path: Path, config: RunConfig) -> Tensor:
    config, _ = resolved(config)
    after = weights(fit(tmp_path, config)[0])
    return torch.cat(
        [(after[name].double() - p.double()).flatten() for name, p in first_model(config).named_parameters()]
    )


def test_gradients_are_clipped_by_their_norm_over_all_parameters(tmp_path: Path):
    free = change(tmp_path, once(train=PLAIN))
    assert free.norm() > 0.1
    clipped = change(tmp_path, once(train=dict(**PLAIN, clip=0.1)))
    torch.testing.assert_close(clipped, free * (0.1 / free.norm()), rtol=0, atol=1e-6)
    loose = change(tmp_path, once(train=dict(**PLAIN, clip=1000.0)))
    torch.testing.assert_close(loose, free, rtol=0, atol=0)


def test_ema_averages_the_weights_after_each_step(tmp_path: Path):
    config = tiny(model=dict(layout="favor(m=8)"), train=dict(ema=0.8, redraw=2))
    training = build_training(tmp_path, config)
    average: dict[str, Tensor] = {}
    for event in training.events():
        if isinstance(event, Step):
            now = {name: p.detach().double().clone() for name, p in training.model.named_parameters()}
            average = {name: 0.8 * average[name] + 0.2 * value for name, value in now.items()} if average else now
            assert training.ema is not None
            for name, p in training.ema.module.named_parameters():
                torch.testing.assert_close(p.detach().double(), average[name], rtol=1e-5, atol=1e-7)
            for name, buffer in training.ema.module.named_buffers():
                assert torch.equal(buffer, dict(training.model.named_buffers())[name])
    assert any(not torch.equal(average[name], value) for name, value in now.items())


def test_ema_weights_are_validated_tested_and_loaded(tmp_path: Path):
    import favorit

    with_ema, without = (fit(tmp_path, tiny(train=dict(ema=ema, select="last", epochs=3)))[0] for ema in (0.9, None))
    live, averaged = weights(with_ema), weights(with_ema, "best-ema.safetensors")
    assert all(
        torch.equal(value, weights(without)[name]) for name, value in live.items()
    )  # EMA does not change training
    assert any(not torch.equal(value, averaged[name]) for name, value in live.items())
    assert [epoch["train_loss"] for epoch in with_ema.epochs] == [epoch["train_loss"] for epoch in without.epochs]
    assert [epoch["validation_loss"] for epoch in with_ema.epochs] != [
        epoch["validation_loss"] for epoch in without.epochs
    ]
    loaded = favorit.load(with_ema).model.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in averaged.items())


# Random features.


def rows(model: Any) -> list[Tensor]:
    return [value.clone() for name, value in model.named_buffers() if name.endswith("rows")]


def draw(config: RunConfig, layer: int, index: int) -> Tensor:
    """The random features of (seed, layer, index): 8 rows of head width 4."""
    return orthogonal_rows(8, 4, seeds.generator(seeds.derive(config.seed, "model"), "features", layer, index)).float()


@pytest.mark.parametrize(
    ("redraw", "indices"),
    [
        ("never", [0] * 12),
        ("epoch", [0] * 6 + [1] * 6),
        (4, [0] * 4 + [1] * 4 + [2] * 4),
        (1, list(range(12))),
        (100, [0] * 12),
    ],
)
def test_features_are_redrawn_exactly_at_the_configured_steps(tmp_path: Path, redraw, indices):
    config = tiny(model=dict(layout="favor(m=8)"), train=dict(redraw=redraw), seed=5)
    training = build_training(tmp_path, config)
    expected = iter(indices)
    epochs = 0
    for event in training.events():
        if isinstance(event, Step):
            index = next(expected)
            for layer, found in enumerate(rows(training.model)):
                assert torch.equal(found, draw(config, layer, index))
        elif isinstance(event, Epoch):  # validation and checkpoints draw nothing
            epochs += 1
            assert all(
                torch.equal(found, draw(config, layer, index)) for layer, found in enumerate(rows(training.model))
            )
    assert epochs == 2
    assert next(expected, None) is None


def test_draws_differ_by_seed_layer_and_index():
    found = [draw(tiny(seed=seed), layer, index) for seed in (0, 1) for layer in (0, 1) for index in (0, 1)]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_current_features_are_saved_with_the_weights(tmp_path: Path):
    config = tiny(model=dict(layout="favor(m=8)"), train=dict(redraw=4, select="last"))
    saved = {name: value for name, value in weights(fit(tmp_path, config)[0]).items() if name.endswith("rows")}
    assert len(saved) == 2
    for layer, value in enumerate(saved.values()):
        assert torch.equal(value, draw(config, layer, 2))
