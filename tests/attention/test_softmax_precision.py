"""Softmax attention trained in half precision on a CPU equals fp64 on the same inputs, up to rounding.

CPUs with bf16 instructions use another implementation than CPUs without. Both are tested on every CPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from checks import Products
from favorit.attention.cpu.limits import Limits
from favorit.selftest.inputs import assert_close, builder, gradients, tensors


@pytest.fixture(params=[True, False], ids=["bf16 instructions", "emulated bf16"])
def limits(request: pytest.FixtureRequest) -> Limits:
    """The limits of a CPU with or without bf16 instructions. Explicit weights are used for any number of weights."""
    return Limits(bf16_products=request.param, fewest_weights=0)


ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # half a unit in the last place of the largest element


def exact(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> list[Tensor]:
    """Outputs and gradients of torch's kernel in fp64, for the rounded inputs."""
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    return [out, *gradients(out, *wide)]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("elements", [1, 1 << 20])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [65, 197, 257])
def test_half_precision_training_is_accurate_to_one_rounding(
    dtype: torch.dtype, elements: int, causal: bool, tokens: int, limits: Limits
) -> None:
    """With explicit weights (bidirectional) and with torch's kernel (causal). The output gradient is rounded too."""
    limits = replace(limits, block_elements=elements)
    q, k, v = tensors(tokens, 16, dtype=dtype)
    out = builder("softmax", limits)(head_dim=16, tokens=tokens, causal=causal)(q, k, v)
    found = [out, *gradients(out, q, k, v)]
    for mine, twin in zip(found, exact(q, k, v, causal), strict=True):
        assert mine.dtype == dtype
        assert_close(mine.double(), twin, 2 * ROUNDING[dtype])


@pytest.mark.parametrize(("size", "offset"), [(1, 0), (10, 0), (30, 0), (1, 30)])
def test_bf16_is_accurate_for_large_scores_and_value_offsets(size: float, offset: float, limits: Limits) -> None:
    """Rounding a score of 50 to bf16 would change it, and the logarithm of its weight, by up to 0.1. An offset that all
    values share adds the same number to the gradients of all weights of a row, and cancels.
    """
    q, k, v = tensors(65, 16, dtype=torch.bfloat16)
    q, v = (q.detach() * size).requires_grad_(), (v.detach() + offset).requires_grad_()
    out = builder("softmax", limits)(head_dim=16, tokens=65)(q, k, v)
    for mine, twin in zip([out, *gradients(out, q, k, v)], exact(q, k, v), strict=True):
        assert_close(mine.double(), twin, 2 * ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("tokens", [65, 257, 513])
@pytest.mark.parametrize("autocast", [False, True])
def test_products_have_the_fastest_dtype(tokens: int, autocast: bool, limits: Limits) -> None:
    """On a CPU with bf16 instructions, all products but the scores are bf16. On other CPUs, products are fp32, except
    for long sequences, for which torch's kernel runs in bf16.
    """
    mixer = builder("softmax", limits)(head_dim=16, tokens=tokens)
    q, k, v = tensors(tokens, 16, dtype=torch.float32 if autocast else torch.bfloat16)
    with Products() as products:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = mixer(q, k, v)
        gradients(out, q, k, v)
    assert len(products.types) > 1
    wide, half = {torch.float32}, {torch.bfloat16}
    if limits.multiplies_bf16:
        assert products.types[-5:] == [half] * 5
        assert all(types == wide for types in products.types[:-5])
    elif tokens <= 512:
        assert all(types == wide for types in products.types)
    else:
        assert all(torch.bfloat16 in types for types in products.types), (
            "backward also has an fp32 argument: the sums of exponentials"
        )


def test_weights_are_saved_once(limits: Limits) -> None:
    """Backward saves no other tensor of this size. On a CPU with bf16 instructions, the weights are bf16."""
    q, k, v = tensors(65, 16, dtype=torch.bfloat16)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        builder("softmax", limits)(head_dim=16, tokens=65)(q, k, v)
    large = [t.dtype for t in kept if t.numel() == q.shape[:-1].numel() * 65]
    assert large == [torch.bfloat16 if limits.multiplies_bf16 else torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, *ROUNDING])
@pytest.mark.parametrize("queries", [1, 3])
def test_few_queries_over_tokens_that_are_keys_and_values_equal_torchs_kernel(
    dtype: torch.dtype, queries: int, limits: Limits
) -> None:
    """One product computes the gradients of x as keys and as values. If keys and values are two equal tensors, another
    implementation is used.
    """
    q, x, _ = tensors(queries, 16, n_keys=50, dtype=dtype)
    # This limit excludes the implementation for many queries.
    mixer = builder("softmax", replace(limits, fewest_weights=q.shape[:-1].numel() * 50 + 1))(head_dim=16, tokens=50)
    in_own_dtype = dtype == torch.float32 or (dtype == torch.bfloat16 and limits.multiplies_bf16)
    reason = mixer.explain(q, x, x)
    assert "explicit weights" in reason
    assert ("in fp32" in reason) != in_own_dtype
    assert "explicit weights" not in mixer.explain(q, x, x.clone())
    assert "fewer queries" not in mixer.explain(x, x, x), "as many queries as tokens are not few"
    out = mixer(q, x, x)
    wide = [t.detach().double().requires_grad_() for t in (q, x)]
    exact_out = torch.nn.functional.scaled_dot_product_attention(wide[0], wide[1], wide[1])
    for mine, twin in zip([out, *gradients(out, q, x)], [exact_out, *gradients(exact_out, *wide)], strict=True):
        assert mine.dtype == dtype
        assert_close(mine.double(), twin, 2 * ROUNDING.get(dtype, 5e-7))


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize(
    "types", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)]
)
@pytest.mark.parametrize("half", ROUNDING)
def test_forward_and_backward_under_autocast_equal_fp64(
    same: bool, types: tuple[torch.dtype, torch.dtype], half: torch.dtype, limits: Limits
) -> None:
    """Backward runs under autocast too, although torch recommends to run it outside. Queries and tokens have the
    dtypes that other layers output.
    """
    q, x, other = tensors(3, 16, n_keys=50, dtype=torch.bfloat16)
    q, x, v = (
        t.detach().to(dtype).requires_grad_()
        for t, dtype in zip((q, x, x if same else other), (*types, types[1]), strict=True)
    )
    v = x if same else v
    with torch.autocast("cpu", dtype=half):
        out = builder("softmax", limits)(head_dim=16, tokens=50)(q, x, v)
        found = gradients(out, q, x, v)
    wide_q, wide_x, wide_v = (t.detach().double().requires_grad_() for t in (q, x, v))
    wide_v = wide_x if same else wide_v
    exact_out = torch.nn.functional.scaled_dot_product_attention(wide_q, wide_x, wide_v)
    for mine, twin in zip([out, *found], [exact_out, *gradients(exact_out, wide_q, wide_x, wide_v)], strict=True):
        assert_close(mine.double(), twin, 2 * ROUNDING[torch.bfloat16])


def test_transforms_of_torch_func_use_torchs_kernel(limits: Limits) -> None:
    """torch.func cannot transform our autograd functions. Gradients equal those of an eager call."""
    q, x, _ = tensors(3, 16, n_keys=50)
    mixer = builder("softmax", limits)(head_dim=16, tokens=50)
    found = torch.func.grad(lambda q, x: mixer(q, x, x).square().sum(), argnums=(0, 1))(q.detach(), x.detach())
    for mine, twin in zip(found, torch.autograd.grad(mixer(q, x, x).square().sum(), (q, x)), strict=True):
        assert_close(mine, twin, 1e-6)


@pytest.mark.parametrize("elements", [1, 2 * 40 * 50, 1 << 20])
def test_masks_different_lengths_views_and_mixed_dtypes_under_autocast_equal_fp64(
    elements: int, limits: Limits
) -> None:
    """Blocks have 1 image, at most 2, or all 5 images. There are 40 queries, 50 keys and values of another width. k is
    fp32, as after a gate.
    """
    mixer = builder("softmax", replace(limits, block_elements=elements))(heads=3, head_dim=8, tokens=50)
    source = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(5, n, 3, d, generator=source).to(torch.bfloat16).requires_grad_()
        for n, d in ((40, 8), (50, 8), (50, 6))
    )
    k = k.detach().float().requires_grad_()
    mask = torch.ones(5, 50, dtype=torch.bool)
    for hidden in (0, 20):
        mask[:, :hidden] = False
        views = [x.transpose(1, 2) for x in (q, k, v)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = mixer(*views, key_mask=mask if hidden else None)
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        exact_out = mixer.weights(*(x.transpose(1, 2) for x in wide[:2]), key_mask=mask) @ wide[2].transpose(1, 2)
        assert_close(out.double(), exact_out, 2 * ROUNDING[torch.bfloat16])
        for mine, twin in zip(gradients(out, q, k, v), gradients(exact_out, *wide), strict=True):
            assert_close(mine.double(), twin, 2 * ROUNDING[torch.bfloat16])


def test_mixed_dtypes_are_rejected_as_torch_rejects_them(limits: Limits) -> None:
    q, k, v = tensors(9, 4)
    with pytest.raises(RuntimeError, match="same dtype"):
        builder("softmax", limits)(head_dim=4, tokens=9)(q, k, v.double())


@pytest.mark.parametrize("tokens", [65, 257])
def test_autocast_sets_the_output_dtype_and_inputs_the_gradient_dtype(tokens: int, limits: Limits) -> None:
    q, k, v = (x.detach().bfloat16().float().requires_grad_() for x in tensors(tokens, 16))
    mixer = builder("softmax", limits)(head_dim=16, tokens=tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mixer(q, k, v)
    assert out.dtype == torch.bfloat16
    for mine, twin in zip([out, *gradients(out, q, k, v)], exact(q, k, v), strict=True):
        assert mine is out or mine.dtype == torch.float32
        assert_close(mine.double(), twin, 2 * ROUNDING[torch.bfloat16])


def test_half_precision_is_computed_in_fp32_if_fp32_is_faster(limits: Limits) -> None:
    """In training up to 512 tokens, unless the CPU has bf16 instructions."""
    mixer = builder("softmax", limits)(head_dim=4, tokens=513)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    bf16 = "explicit weights in bf16" if limits.multiplies_bf16 else None
    for tokens, context, dtype, reason in [
        (512, nullcontext(), torch.bfloat16, bf16 or "torch's fused kernel in fp32"),
        (513, nullcontext(), torch.bfloat16, bf16 or "torch's fused kernel:"),
        (65, nullcontext(), torch.float16, "explicit weights in fp32"),
        (512, nullcontext(), torch.float16, "torch's fused kernel in fp32"),
        (513, nullcontext(), torch.float16, "torch's fused kernel:"),
        (512, nullcontext(), torch.float32, "torch's fused kernel:"),
        (512, torch.no_grad(), torch.bfloat16, "torch's fused kernel: inference"),
        (512, autocast, torch.float32, bf16 or "torch's fused kernel in fp32"),
    ]:
        with context:
            assert mixer.explain(*tensors(tokens, 4, dtype=dtype)).startswith(reason)


def test_too_many_weights_are_not_kept_in_bf16(limits: Limits) -> None:
    q, k, v = tensors(50, 4, dtype=torch.bfloat16)
    mixer = builder("softmax", replace(limits, most_weights=q.shape[:-1].numel() * 50 - 1))(head_dim=4, tokens=50)
    assert "explicit" not in mixer.explain(q, k, v)
