"""Random features are a function of (seed, layer, index), and change in training only."""

from __future__ import annotations

import pytest
import torch

from favorit.attention import Linear, build_mixer, streamed
from favorit.attention.mixer import UnprojectedTokens

RANDOM = ["favor(m=16)", "relu(m=16)"]


def features(spec: str, layer: int = 0, seed: int = 0) -> Linear:
    mixer = build_mixer(spec, heads=2, head_dim=8, layer=layer, seed=seed)
    assert isinstance(mixer, Linear)
    return mixer


def rows(mixer: Linear) -> torch.Tensor:
    (buffer,) = mixer.buffers()
    return buffer.clone()


@pytest.mark.parametrize("spec", RANDOM)
def test_features_depend_on_seed_layer_and_index_alone(spec: str) -> None:
    torch.manual_seed(1)
    one = features(spec)
    torch.manual_seed(2)
    other = features(spec)
    assert torch.equal(rows(one), rows(other))
    other.kernel.redraw(7)
    one.kernel.redraw(3)
    one.kernel.redraw(7)
    assert torch.equal(rows(one), rows(other))
    assert not torch.equal(rows(one), rows(features(spec)))
    assert not torch.equal(rows(features(spec, layer=1)), rows(features(spec)))
    assert not torch.equal(rows(features(spec, seed=1)), rows(features(spec)))


@pytest.mark.parametrize("spec", RANDOM)
def test_evaluation_keeps_the_features_of_training(spec: str) -> None:
    mixer = features(spec).eval()
    before = rows(mixer)
    mixer.kernel.redraw(1)
    assert torch.equal(rows(mixer), before)
    mixer.train().kernel.redraw(1)
    assert not torch.equal(rows(mixer), before)


@pytest.mark.parametrize("spec", RANDOM)
def test_a_state_dictionary_carries_redrawn_features(spec: str) -> None:
    redrawn, fresh = features(spec), features(spec)
    redrawn.kernel.redraw(5)
    fresh.load_state_dict(redrawn.state_dict())
    assert torch.equal(rows(fresh), rows(redrawn))


def test_without_a_seed_the_global_generator_decides() -> None:
    def drawn() -> torch.Tensor:
        mixer = build_mixer("favor(m=16)", heads=2, head_dim=8)
        assert isinstance(mixer, Linear)
        return rows(mixer)

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    torch.manual_seed(3)
    assert torch.equal(drawn(), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("spec", ["relu(m=16, learned=True)", "relu", "learned", "mixture"])
def test_kernels_without_random_features_ignore_a_redraw(spec: str) -> None:
    mixer = features(spec)
    before = {name: value.clone() for name, value in mixer.state_dict().items()}
    mixer.kernel.redraw(4)
    assert all(torch.equal(value, before[name]) for name, value in mixer.state_dict().items())


@pytest.mark.parametrize("spec", [*RANDOM, "favor(m=16, causal=True)"])
def test_features_redrawn_before_they_are_made_again_going_back_are_refused(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    q, k, v = (torch.randn(2, 2, 9, 8, requires_grad=True) for _ in range(3))
    mixer = features(spec)
    read = mixer.read(q[:, :, :1], UnprojectedTokens(k[:, 0], torch.eye(8).expand(2, 2, 8, 8), None))
    for out in (mixer(q, k, v), read):
        mixer.kernel.redraw(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
