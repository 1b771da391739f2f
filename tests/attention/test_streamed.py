"""The streamed path is the plain one, however it is cut into blocks."""

from __future__ import annotations

import pickle

import pytest
import torch
from favorit.attention.blocks import even, slices
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from checks import assert_close, builder, gradients, tensors
from favorit.attention import Linear, causal, explicit, streamed
from favorit.attention.mixer import UnprojectedTokens

KERNELS = ["relu(m=24)", "favor(m=24)", "relu(m=8, learned=True)", "mixture", "learned(m=5)"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spec", KERNELS)
@pytest.mark.parametrize("numbers", [1, 2 * 24 * 70, 1 << 14])
def test_blocks_of_any_size_equal_the_plain_form(
    spec: str, numbers: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and the gradients of inputs and parameters, in fp64; keys of very different norms test the running
    maximum.
    """
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", numbers)
    mixer = builder(spec)(head_dim=6, tokens=150).double()
    assert isinstance(mixer, Linear)
    q, k, v = tensors(140, 6, n_keys=150, dtype=torch.float64)
    k = (k.detach() * torch.linspace(0.1, 12, 150, dtype=torch.float64)[:, None]).requires_grad_()
    mask = torch.rand(2, 150, generator=torch.Generator().manual_seed(0)) < 0.7 if masked else None
    wanted = (q, k, v, *mixer.parameters())
    fast = streamed.streamed(mixer.kernel, q, k, v, mask)
    slow = mixer._at_once(mixer.kernel, q, k, v, mask)
    assert_close(fast, slow, 1e-12)
    for mine, twin in zip(gradients(fast, *wanted), gradients(slow, *wanted), strict=True):
        assert_close(mine, twin, 1e-11)


def test_a_forward_on_top_of_linear_attention_acts_once_under_autocast() -> None:
    class Sharper(Linear):
        def forward(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
        ) -> torch.Tensor:
            return super().forward(3 * q, k, v, key_mask=key_mask)

    kernel = builder("favor(m=8)")(head_dim=4, tokens=5).kernel
    q, k, v = (x.detach() for x in tensors(5, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(Sharper(kernel)(q, k, v), Linear(kernel)(3 * q, k, v))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spec", KERNELS)
@pytest.mark.parametrize(("numbers", "parts"), [(1, 4), (24 * 150 * 2, 2), (1 << 16, 1)])
def test_causal_parts_of_any_size_equal_the_whole(
    spec: str, numbers: int, parts: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and the gradients of inputs and parameters, in fp64: heads one by one, images one by one, all."""
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", numbers)
    mixer = builder(spec)(head_dim=6, tokens=150, causal=True).double()
    assert isinstance(mixer, Linear)
    q, k, v = tensors(140, 6, n_keys=150, dtype=torch.float64)
    mask = torch.rand(2, 150, generator=torch.Generator().manual_seed(0)) < 0.7 if masked else None
    wanted = (q, k, v, *mixer.parameters())
    if mixer.kernel.features == 24:
        assert len(causal._parts(mixer.kernel, q, k)) == parts
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    fast = mixer(q, k, v, key_mask=mask)
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 1 << 30)
    slow = mixer(q, k, v, key_mask=mask)
    assert_close(fast, slow, 1e-12)
    for mine, twin in zip(gradients(fast, *wanted), gradients(slow, *wanted), strict=True):
        assert_close(mine, twin, 1e-11)


@settings(max_examples=200)
@given(
    groups=st.integers(1, 5_000),
    tokens=st.integers(1, 70_000),
    features=st.integers(1, 512),
)
def test_a_block_fits_unless_it_is_as_small_as_it_may_be(groups: int, tokens: int, features: int) -> None:
    together, length = streamed.block_sizes(groups, tokens, features, torch.float32)
    assert 1 <= together <= groups
    assert min(streamed.SHORTEST_BLOCK, tokens) <= length <= tokens
    fits = together * length * features <= streamed.BLOCK_NUMBERS
    assert fits or (together == 1 and length == min(streamed.SHORTEST_BLOCK, tokens))


@pytest.mark.parametrize("causal", [False, True])
def test_no_buffer_of_tokens_times_features_is_kept(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the backward holds on to grows with N D and M D, not with N M."""
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    mixer = builder("relu(m=512)")(head_dim=4, tokens=600, causal=causal)
    q, k, v = tensors(600, 4)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        mixer(q, k, v)
        mixer.read(q[:, :, :1], UnprojectedTokens(k[:, 0], torch.eye(4).expand(2, 2, 4, 4), None))
    assert sizes
    tokens_and_one = 2 * 2 * 600 * (4 + 1)  # values are kept with their column of ones
    assert max(sizes) <= max(tokens_and_one, 2 * 2 * 512 * (4 + 1))


def test_weights_too_few_or_too_many_to_keep_take_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(50, 16)
    kept = q.shape[0] * q.shape[1] * 50 * 50
    for fewest, most, short in [(kept, kept, True), (kept + 1, 2 * kept, False), (0, kept - 1, False)]:
        monkeypatch.setattr(explicit, "FEWEST_KEPT", fewest)
        monkeypatch.setattr(explicit, "MOST_KEPT", most)
        assert (explicit.explicit_way(q, k, v) is explicit.InFp32) == short


@pytest.mark.parametrize("numbers", [1, 2 * 50 * 60, 1 << 19])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (50, 60), (200, 200), (201, 201), (5, 200)])
def test_short_softmax_equals_the_fused_kernel(
    n_queries: int, n_keys: int, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training on short sequences takes another path; values and gradients are those of torch's kernel, on both sides
    of the limit.
    """
    monkeypatch.setattr(explicit, "BLOCK_NUMBERS", numbers)
    monkeypatch.setattr(explicit, "FEWEST_KEPT", 0)
    q, k, v = tensors(n_queries, 16, n_keys=n_keys)
    assert (explicit.explicit_way(q, k, v) is explicit.InFp32) == (max(n_queries, n_keys) <= 200)
    fast, exact = (
        builder("softmax")(head_dim=16, tokens=n_keys)(q, k, v),
        torch.nn.functional.scaled_dot_product_attention(q, k, v),
    )
    assert_close(fast, exact, 1e-6)
    for mine, twin in zip(gradients(fast, q, k, v), gradients(exact, q, k, v), strict=True):
        assert_close(mine, twin, 1e-6)


@pytest.mark.parametrize("spec", ["favor(m=24)", "relu(m=24)", "learned(m=5)"])
def test_no_queries_are_no_outputs_and_no_gradients(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    mixer = builder(spec)(head_dim=6, tokens=90)
    _, k, v = tensors(90, 6)
    out = mixer(torch.empty(2, 2, 0, 6), k, v)
    assert out.shape == (2, 2, 0, 6)
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients(out, k, v))


def test_frozen_parameters_of_a_kernel_get_no_gradient_and_stop_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    mixer = builder("learned(m=5)")(head_dim=6, tokens=9)
    frozen, *trained = mixer.parameters()
    frozen.requires_grad_(False)
    q, k, v = tensors(9, 6)
    fast, slow = mixer(q, k, v), mixer.weights(q, k) @ v
    for mine, twin in zip(gradients(fast, q, k, v, *trained), gradients(slow, q, k, v, *trained), strict=True):
        assert_close(mine, twin, 1e-5)


@given(length=st.integers(1, 400), most=st.integers(0, 300))
def test_even_pieces_fit_and_are_even(length: int, most: int) -> None:
    size = even(length, most)
    pieces = slices(length, size)
    assert 1 <= size <= max(most, 1)
    assert len(pieces) <= -(-length // max(most, 1))
    assert (pieces[0].start, pieces[-1].stop) == (0, length)


@pytest.mark.parametrize("numbers", [1, 70 * 16 * 8, 70 * 70 * 2, 1 << 20])
@pytest.mark.parametrize("spec", ["relu(m=16)", "relu", "favor(m=16)", "learned(m=5)", "softmax"])
def test_blocks_take_views_of_a_packed_projection(spec: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """q, k and v are views of one product, as in the layer: not contiguous. Blocks of single heads, of 8 and 7 of 15
    heads, of 2, 2 and 1 of 5 images, and one of all.
    """
    for module, few in ((streamed, "FEW_NUMBERS"), (explicit, "FEWEST_KEPT")):
        monkeypatch.setattr(module, few, 0)
        monkeypatch.setattr(module, "BLOCK_NUMBERS", numbers)
    mixer = builder(spec)(head_dim=8, tokens=70)
    packed = torch.randn(5, 70, 3, 3, 8, requires_grad=True)
    q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))
    (ours,) = gradients(mixer(q, k, v), packed)
    (twin,) = gradients(mixer.weights(q, k) @ v, packed)
    assert_close(ours, twin, 1e-5)


@pytest.mark.parametrize("eps", [1e-3, 1e-6, 2e-15, 1e-18])
def test_short_sequences_need_no_guard_where_features_have_a_floor_and_have_one_where_it_is_too_low(eps: float) -> None:
    """All features at their floor: the mean of v, in fp64 to rounding, also where the floor's square is as small as the
    guard.
    """
    mixer = builder(f"relu(eps={eps})")(head_dim=4, tokens=9).double()
    q, k, v = tensors(9, 4, dtype=torch.float64)
    q, k = -q.abs(), -k.abs()
    assert_close(mixer(q, k, v), v.mean(-2, keepdim=True).expand_as(v), 1e-12)
    assert_close(mixer(q, k, v), mixer.weights(q, k) @ v, 1e-12)


@pytest.mark.parametrize("spec", ["relu(m=8)", "favor(m=8)", "exp", "learned(m=5)"])
def test_a_mixer_can_be_pickled(spec: str) -> None:
    mixer = builder(spec)(head_dim=6, tokens=9)
    q, k, v = tensors(9, 6)
    assert torch.equal(pickle.loads(pickle.dumps(mixer))(q, k, v), mixer(q, k, v))


def test_causal_gradients_grow_with_tokens_and_not_with_their_square() -> None:
    """Every piece of the sequence adds to gradients of its own size: bytes that operations write, for twice the tokens
    twice as many.
    """

    def written(tokens: int) -> int:
        mixer = builder("relu(m=16)")(head_dim=4, tokens=tokens, causal=True)
        q, k, v = tensors(tokens, 4)
        out = mixer(q, k, v).sum()
        with _Written() as counter:
            torch.autograd.grad(out, (q, k, v))
        return counter.total

    assert written(4096) < 2.2 * written(2048)


class _Written(TorchDispatchMode):
    """The numbers that operations return."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.total += sum(x.numel() for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor))
        return out
