"""Random features are a function of (seed, layer, index), and redraws act in training mode only."""

from __future__ import annotations

import pytest
import torch

from favorit.attention import Linear, build_mixer
from favorit.attention.cpu.limits import Limits
from favorit.attention.mixer import UnprojectedTokens

RANDOM = ["favor(m=16)", "relu(m=16)"]


def mixer_of(spec: str, layer: int = 0, seed: int = 0) -> Linear:
    mixer = build_mixer(spec, heads=2, head_dim=8, layer=layer, seed=seed)
    assert isinstance(mixer, Linear)
    return mixer


def rows(mixer: Linear) -> torch.Tensor:
    (buffer,) = mixer.buffers()
    return buffer.clone()


@pytest.mark.parametrize("spec", RANDOM)
def test_features_depend_only_on_seed_layer_and_index(spec: str) -> None:
    torch.manual_seed(1)
    one = mixer_of(spec)
    torch.manual_seed(2)
    other = mixer_of(spec)
    assert torch.equal(rows(one), rows(other))
    other.kernel.redraw(7)
    one.kernel.redraw(3)
    one.kernel.redraw(7)
    assert torch.equal(rows(one), rows(other))
    assert not torch.equal(rows(one), rows(mixer_of(spec)))
    assert not torch.equal(rows(mixer_of(spec, layer=1)), rows(mixer_of(spec)))
    assert not torch.equal(rows(mixer_of(spec, seed=1)), rows(mixer_of(spec)))


@pytest.mark.parametrize("spec", RANDOM)
def test_redraw_changes_nothing_in_eval_mode(spec: str) -> None:
    mixer = mixer_of(spec).eval()
    before = rows(mixer)
    mixer.kernel.redraw(1)
    assert torch.equal(rows(mixer), before)
    mixer.train().kernel.redraw(1)
    assert not torch.equal(rows(mixer), before)


@pytest.mark.parametrize("spec", RANDOM)
def test_state_dict_includes_redrawn_features(spec: str) -> None:
    redrawn, fresh = mixer_of(spec), mixer_of(spec)
    redrawn.kernel.redraw(5)
    fresh.load_state_dict(redrawn.state_dict())
    assert torch.equal(rows(fresh), rows(redrawn))


def test_features_without_a_seed_come_from_the_global_generator() -> None:
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
def test_kernels_without_random_features_ignore_redraw(spec: str) -> None:
    mixer = mixer_of(spec)
    before = {name: value.clone() for name, value in mixer.state_dict().items()}
    mixer.kernel.redraw(4)
    assert all(torch.equal(value, before[name]) for name, value in mixer.state_dict().items())


@pytest.mark.parametrize("spec", [*RANDOM, "favor(m=16, causal=True)"])
def test_redraw_between_forward_and_backward_is_rejected(spec: str) -> None:
    """Backward recomputes the features, so it needs the rows that forward used."""
    q, k, v = (torch.randn(2, 2, 9, 8, requires_grad=True) for _ in range(3))
    mixer = mixer_of(spec)
    mixer.limits = Limits(one_thread=0, few_feature_elements=0)
    read = mixer.read(q[:, :, :1], UnprojectedTokens(k[:, 0], torch.eye(8).expand(2, 2, 8, 8), None))
    for out in (mixer(q, k, v), read):
        mixer.kernel.redraw(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
