"""Blocked implementations equal the direct form for every block size and save no tensor of tokens x features."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from favorit.attention import Linear
from favorit.attention.cpu import blocked, explicit_softmax, in_parts, short
from favorit.attention.cpu.limits import Limits
from favorit.attention.cpu.tiling import block_sizes, chunks, even_chunk_size
from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest.inputs import assert_close, builder, gradients, tensors

KERNELS = ["relu(m=24)", "favor(m=24)", "relu(m=8, learned=True)", "mixture", "learned(m=5)"]
ALWAYS_BLOCKED = Limits(one_thread=0, few_feature_elements=0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spec", KERNELS)
@pytest.mark.parametrize("elements", [1, 2 * 24 * 70, 1 << 14])
def test_blocked_attention_and_short_attention_equal_the_direct_form_for_every_block_size(
    spec: str, elements: int, masked: bool
) -> None:
    """Outputs and gradients in fp64. Keys of very different norms test the running maximum."""
    mixer = builder(spec)(head_dim=6, tokens=150).double()
    assert isinstance(mixer, Linear)
    q, k, v = tensors(140, 6, n_keys=150, dtype=torch.float64)
    k = (k.detach() * torch.linspace(0.1, 12, 150, dtype=torch.float64)[:, None]).requires_grad_()
    mask = torch.rand(2, 150, generator=torch.Generator().manual_seed(0)) < 0.7 if masked else None
    wanted = (q, k, v, *mixer.parameters())
    direct = mixer.direct(q, k, v, mask)
    direct_gradients = gradients(direct, *wanted)
    fast = blocked.attend(q, k, v, mask, mixer.kernel, Limits(block_elements=elements))
    for out in (fast, short.attend(q, k, v, mask, mixer.kernel, is_causal=False)):
        assert_close(out, direct, 1e-12)
        for mine, twin in zip(gradients(out, *wanted), direct_gradients, strict=True):
            assert_close(mine, twin, 1e-11)


def test_overridden_forward_of_linear_attention_runs_once_under_autocast() -> None:
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
@pytest.mark.parametrize(("elements", "num_parts"), [(1, 4), (24 * 150 * 2, 2), (1 << 16, 1)])
def test_causal_parts_equal_the_whole_for_every_part_size(
    spec: str, elements: int, num_parts: int, masked: bool
) -> None:
    """Outputs and gradients in fp64. Parts are single heads, single images, or the whole batch."""
    limits = Limits(one_thread=0, few_feature_elements=0, block_elements=elements)
    mixer = builder(spec, limits)(head_dim=6, tokens=150, causal=True).double()
    assert isinstance(mixer, Linear)
    q, k, v = tensors(140, 6, n_keys=150, dtype=torch.float64)
    mask = torch.rand(2, 150, generator=torch.Generator().manual_seed(0)) < 0.7 if masked else None
    wanted = (q, k, v, *mixer.parameters())
    if mixer.kernel.features == 24:
        assert len(in_parts.parts(mixer.kernel, limits, q, k)) == num_parts
    assert "some heads at a time" in mixer.explain(q, k, v, mask)
    fast, slow = mixer(q, k, v, key_mask=mask), mixer.direct(q, k, v, mask)
    assert_close(fast, slow, 1e-12)
    for mine, twin in zip(gradients(fast, *wanted), gradients(slow, *wanted), strict=True):
        assert_close(mine, twin, 1e-11)


def test_causal_attention_without_queries_returns_no_rows() -> None:
    _, k, v = tensors(5, 4)
    out = builder("relu")(head_dim=4, tokens=5, causal=True)(torch.empty(2, 2, 0, 4), k, v)
    assert out.shape == (2, 2, 0, 4)


@settings(max_examples=200)
@given(heads=st.integers(1, 5_000), tokens=st.integers(1, 70_000), features=st.integers(1, 512))
def test_block_fits_unless_it_has_the_smallest_size(heads: int, tokens: int, features: int) -> None:
    limits = Limits()
    block_heads, block_tokens = block_sizes(heads, tokens, features, torch.float32, limits)
    assert 1 <= block_heads <= heads
    assert min(limits.shortest_block, tokens) <= block_tokens <= tokens
    fits = block_heads * block_tokens * features <= limits.block_elements
    assert fits or (block_heads == 1 and block_tokens == min(limits.shortest_block, tokens))


@pytest.mark.parametrize("causal", [False, True])
def test_no_tensor_of_tokens_times_features_is_saved_for_backward(causal: bool) -> None:
    """Memory for backward grows with N D and M D, not with N M."""
    mixer = builder("relu(m=512)", ALWAYS_BLOCKED)(head_dim=4, tokens=600, causal=causal)
    q, k, v = tensors(600, 4)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        mixer(q, k, v)
        mixer.read(q[:, :, :1], UnprojectedTokens(k[:, 0], torch.eye(4).expand(2, 2, 4, 4), None))
    assert sizes
    values_and_ones = 2 * 2 * 600 * (4 + 1)
    assert max(sizes) <= max(values_and_ones, 2 * 2 * 512 * (4 + 1))


def test_too_few_or_too_many_weights_use_the_fused_kernel() -> None:
    q, k, v = tensors(50, 16)
    kept = q.shape[0] * q.shape[1] * 50 * 50
    for fewest, most, is_explicit in [(kept, kept, True), (kept + 1, 2 * kept, False), (0, kept - 1, False)]:
        limits = Limits(fewest_weights=fewest, most_weights=most)
        mixer = builder("softmax", limits)(head_dim=16, tokens=50)
        assert ("explicit weights in fp32" in mixer.explain(q, k, v)) == is_explicit


@pytest.mark.parametrize("elements", [1, 2 * 50 * 60, 1 << 19])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (50, 60), (200, 200), (201, 201), (5, 200)])
def test_explicit_softmax_equals_the_fused_kernel(n_queries: int, n_keys: int, elements: int) -> None:
    """Outputs and gradients on both sides of the token limit."""
    limits = Limits(fewest_weights=0, block_elements=elements)
    mixer = builder("softmax", limits)(head_dim=16, tokens=n_keys)
    q, k, v = tensors(n_queries, 16, n_keys=n_keys)
    assert ("explicit weights in fp32" in mixer.explain(q, k, v)) == (max(n_queries, n_keys) <= 200)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    exact_gradients = gradients(exact, q, k, v)
    for fast in (mixer(q, k, v), explicit_softmax.attend_in_fp32(q, k, v, limits)):
        assert_close(fast, exact, 1e-6)
        for mine, twin in zip(gradients(fast, q, k, v), exact_gradients, strict=True):
            assert_close(mine, twin, 1e-6)


@pytest.mark.parametrize("spec", ["favor(m=24)", "relu(m=24)", "learned(m=5)"])
def test_no_queries_give_no_outputs_and_zero_gradients(spec: str) -> None:
    mixer = builder(spec, ALWAYS_BLOCKED)(head_dim=6, tokens=90)
    _, k, v = tensors(90, 6)
    out = mixer(torch.empty(2, 2, 0, 6), k, v)
    assert out.shape == (2, 2, 0, 6)
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients(out, k, v))


def test_frozen_kernel_parameter_does_not_affect_the_other_gradients() -> None:
    mixer = builder("learned(m=5)", ALWAYS_BLOCKED)(head_dim=6, tokens=9)
    frozen, *trained = mixer.parameters()
    frozen.requires_grad_(False)
    q, k, v = tensors(9, 6)
    fast, slow = mixer(q, k, v), mixer.weights(q, k) @ v
    for mine, twin in zip(gradients(fast, q, k, v, *trained), gradients(slow, q, k, v, *trained), strict=True):
        assert_close(mine, twin, 1e-5)


@given(length=st.integers(1, 400), most=st.integers(0, 300))
def test_even_chunks_fit_and_cover_the_length(length: int, most: int) -> None:
    size = even_chunk_size(length, most)
    pieces = chunks(length, size)
    assert 1 <= size <= max(most, 1)
    assert len(pieces) <= -(-length // max(most, 1))
    assert (pieces[0].start, pieces[-1].stop) == (0, length)


@pytest.mark.parametrize("elements", [1, 70 * 16 * 8, 70 * 70 * 2, 1 << 20])
@pytest.mark.parametrize("spec", ["relu(m=16)", "relu", "favor(m=16)", "learned(m=5)", "softmax"])
def test_blocks_accept_views_of_a_packed_projection(spec: str, elements: int) -> None:
    """q, k and v are not contiguous, as in the layer. Blocks are single heads, at most 8 of 15 heads, at most 2 of 5
    images, or the whole batch.
    """
    limits = Limits(one_thread=0, few_feature_elements=0, fewest_weights=0, block_elements=elements)
    mixer = builder(spec, limits)(heads=3, head_dim=8, tokens=70)
    packed = torch.randn(5, 70, 3, 3, 8, requires_grad=True)
    q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))
    (ours,) = gradients(mixer(q, k, v), packed)
    (twin,) = gradients(mixer.weights(q, k) @ v, packed)
    assert_close(ours, twin, 1e-5)


@pytest.mark.parametrize("limits", [Limits(), ALWAYS_BLOCKED], ids=["short", "blocked"])
@pytest.mark.parametrize("eps", [1e-3, 1e-6, 2e-15, 1e-18])
def test_features_at_their_floor_give_the_mean_of_v(eps: float, limits: Limits) -> None:
    """Above `SAFE_FLOOR` no guard is added. Below, the square of the floor may be as small as the guard."""
    mixer = builder(f"relu(eps={eps})", limits)(head_dim=4, tokens=9).double()
    q, k, v = tensors(9, 4, dtype=torch.float64)
    q, k = -q.abs(), -k.abs()
    assert_close(mixer(q, k, v), v.mean(-2, keepdim=True).expand_as(v), 1e-12)
    assert_close(mixer(q, k, v), mixer.weights(q, k) @ v, 1e-12)


@pytest.mark.parametrize("spec", ["relu(m=8)", "favor(m=8)", "exp", "learned(m=5)"])
def test_mixer_can_be_pickled(spec: str) -> None:
    mixer = builder(spec)(head_dim=6, tokens=9)
    q, k, v = tensors(9, 6)
    assert torch.equal(pickle.loads(pickle.dumps(mixer))(q, k, v), mixer(q, k, v))


def test_causal_backward_writes_linearly_many_elements() -> None:
    """The gradients of a block have the size of the block, so twice the tokens write twice the elements."""

    def count_written(tokens: int) -> int:
        mixer = builder("relu(m=16)")(head_dim=4, tokens=tokens, causal=True)
        q, k, v = tensors(tokens, 4)
        out = mixer(q, k, v).sum()
        with _WrittenElements() as counter:
            torch.autograd.grad(out, (q, k, v))
        return counter.total

    assert count_written(4096) < 2.2 * count_written(2048)


class _WrittenElements(TorchDispatchMode):
    """Counts the elements that operations return."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.total += sum(x.numel() for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor))
        return out
