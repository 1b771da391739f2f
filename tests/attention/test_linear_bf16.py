"""Linear attention in bf16 equals fp64 on the same inputs, up to the rounding of features and sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from checks import Products
from favorit.attention import KERNELS, Linear
from favorit.attention.cpu.block_features import cpu_kernel
from favorit.attention.cpu.limits import Limits
from favorit.attention.cpu.tiling import block_sizes
from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest.inputs import HEADS, assert_close, builder, gradients, tensors

ROUNDING = 2**-8
HALF, WIDE = {torch.bfloat16}, {torch.float32}
# These limits force blocks for inputs of every size, and the bf16 implementation, on any CPU.
BLOCKED = Limits(one_thread=0, few_feature_elements=0, bf16_products=True)


def rounded(spec: str, head_dim: int = 16, limits: Limits = BLOCKED, heads: int = HEADS) -> Linear:
    """A mixer with projection rows that bf16 represents exactly. Otherwise rounding the rows would change the sign of
    some projections, and so the slope of their features.
    """
    mixer = builder(spec, limits)(heads=heads, head_dim=head_dim, tokens=65)
    assert isinstance(mixer, Linear)
    for buffer in mixer.buffers():
        buffer.copy_(buffer.bfloat16())
    return mixer


def values_and_gradients(mixer: Linear, inputs: Sequence[Tensor]) -> list[Tensor]:
    out = mixer(*inputs)
    return [out, *gradients(out, *inputs)]


def check(mixer: Linear, inputs: Sequence[Tensor], tolerance: float = 2 * ROUNDING) -> None:
    """Compares in norm. Some of the many features are so close to their kink that rounding changes their slope."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = mixer.double().weights(*wide[:2]) @ wide[2]
    exact = [out, *gradients(out, *wide)]
    for mine, twin in zip(values_and_gradients(mixer.float(), inputs), exact, strict=True):
        assert mine.dtype == torch.bfloat16
        assert ((mine.double() - twin).norm() / twin.norm()).item() < tolerance


@pytest.mark.parametrize(("tokens", "blocks"), [(65, 4), (65, 2), (65, 1), (577, 1)])
@pytest.mark.parametrize(
    "spec", ["relu", "relu(m=24)", "relu(m=24, scale=sqrt, eps=1e-6)", "relu(m=24, eps=7e-3)", "relu(m=24, eps=0.3)"]
)
def test_bf16_outputs_and_gradients_differ_by_rounding_only(spec: str, tokens: int, blocks: int) -> None:
    """Blocks are one, two or all four heads. With more tokens, sums have more terms, but the error does not grow."""
    mixer = rounded(spec)
    features = mixer.kernel.features
    mixer.limits = replace(BLOCKED, bf16_block_elements=4 * tokens * features // blocks)
    assert block_sizes(4, tokens, features, torch.bfloat16, mixer.limits) == (4 // blocks, tokens)
    check(mixer, tensors(tokens, 16, dtype=torch.bfloat16))


@pytest.mark.parametrize("tokens", [65, 577])
@pytest.mark.parametrize("offset", [0.0, 30.0, 300.0])
def test_bf16_gradients_are_accurate_when_values_share_a_large_offset(offset: float, tokens: int) -> None:
    q, k, v = tensors(tokens, 16, dtype=torch.bfloat16)
    check(rounded("relu(m=24)"), (q, k, (v.detach() + offset).requires_grad_()))


@pytest.mark.parametrize("tokens", [65, 577])
def test_bf16_is_accurate_when_keys_with_small_weights_have_distant_values(tokens: int) -> None:
    """Half of the keys have small weights and values far from those of the other keys."""
    q, k, v = (x.detach() for x in tensors(tokens, 16, dtype=torch.bfloat16))
    light = torch.arange(tokens)[:, None] % 2 == 0
    k, v = torch.where(light, k / 8, k), torch.where(light, v - 10, v + 10)
    check(rounded("relu(m=24)"), [x.requires_grad_() for x in (q, k, v)])


@pytest.mark.parametrize("tokens", [65, 577])
def test_keys_without_weight_do_not_add_rounding_errors(tokens: int) -> None:
    """Half of the keys have nonzero features only where queries have none, and values far from the others."""
    q, k, v = (x.detach() for x in tensors(tokens, 16, dtype=torch.bfloat16))
    first, seen = torch.arange(16) < 8, torch.arange(tokens)[:, None] % 2 == 0
    q = torch.where(first, q, -q.abs())
    k = torch.where(first == seen, k, -k.abs())
    check(rounded("relu"), [x.requires_grad_() for x in (q, k, torch.where(seen, v, v + 100))])


def test_bf16_accepts_views_different_lengths_and_another_value_width() -> None:
    source = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(5, n, 3, d, generator=source).to(torch.bfloat16) for n, d in ((40, 8), (50, 8), (50, 6)))
    check(rounded("relu(m=24)", head_dim=8, heads=3), [x.transpose(1, 2).requires_grad_() for x in (q, k, v)])


def test_features_at_their_floor_give_the_mean_of_v_in_bf16() -> None:
    """All values get equal gradients. The square of one floor is below d, and one floor underflows to 0."""
    for eps in (1e-3, 1e-12, 1e-20, 1e-46):
        q, k, v = tensors(65, 16, dtype=torch.bfloat16)
        q, k = (-x.detach().abs() for x in (q, k))
        out, exact = rounded(f"relu(eps={eps})")(q, k, v), v.double().mean(-2, keepdim=True).expand_as(v)
        assert_close(out.double(), exact, 2 * ROUNDING)
        assert_close(gradients(out, v)[0].double(), gradients(exact, v)[0].double(), 2 * ROUNDING)


@pytest.mark.parametrize("autocast", [False, True])
def test_all_large_products_are_in_bf16(autocast: bool) -> None:
    """In forward and backward, also if backward runs inside autocast. Gradients have the dtype of the inputs."""
    q, k, v = tensors(65, 16, dtype=torch.float32 if autocast else torch.bfloat16)
    mixer = rounded("relu(m=24)")
    with Products() as products, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = mixer(q, k, v)
        found = gradients(out, q, k, v)
    assert products.types.count(HALF) == 2 + 5 + 8, "centering, forward, backward"
    assert products.types.count(WIDE) == 2, "the mean of v, and the mean of what rounding changed"
    assert len(products.types) == 17
    assert out.dtype == torch.bfloat16
    assert all(gradient.dtype == q.dtype for gradient in found)


@pytest.mark.parametrize("eps", [1e-3, 7e-3])
def test_reading_few_queries_computes_weights_in_bf16(eps: float) -> None:
    source = torch.Generator().manual_seed(5)
    q, x, weight = (torch.randn(shape, generator=source) for shape in ((2, 2, 1, 16), (2, 65, 32), (2, 2, 16, 32)))
    leaves = [q.bfloat16().requires_grad_(), x.bfloat16().requires_grad_(), (weight / 6).bfloat16().requires_grad_()]
    mixer = rounded(f"relu(m=24, eps={eps})")
    with Products() as products:
        read = mixer.read(leaves[0], UnprojectedTokens(leaves[1], leaves[2], None))
        found = gradients(read, *leaves)
    assert read.dtype == torch.bfloat16
    # Only the features of the one query, in forward and backward, are fp32.
    assert sum(types == WIDE for types in products.types) == 2
    assert all(types in (HALF, WIDE) for types in products.types)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    k, v = torch.einsum("bnc,khdc->kbhnd", wide[1], wide[2])
    out = mixer.double().weights(wide[0], k) @ v
    for mine, twin in zip([read, *found], [out, *gradients(out, *wide)], strict=True):
        assert ((mine.double() - twin).norm() / twin.norm()).item() < 4 * ROUNDING


@pytest.mark.parametrize("spec", ["favor(m=24)", "elu(m=24)", "relu(m=24, learned=True)", "mixture"])
def test_kernel_with_larger_rounding_errors_is_computed_in_fp32(spec: str) -> None:
    mixer = builder(spec, BLOCKED)(head_dim=16, tokens=65)
    assert isinstance(mixer, Linear)
    assert not cpu_kernel(mixer.kernel).allows_bf16(mixer.kernel)
    q, k, v = tensors(65, 16, dtype=torch.bfloat16)
    with Products() as products:
        gradients(mixer(q, k, v), q, k, v)
    assert products.types
    assert all(types == WIDE for types in products.types)


def test_bf16_is_used_only_without_mask_bidirectional_in_one_block_on_supporting_cpus() -> None:
    q, k, v = tensors(65, 16, dtype=torch.bfloat16)
    mask = torch.ones(2, 65, dtype=torch.bool)

    def uses_bf16(limits: Limits = BLOCKED, causal: bool = False, key_mask: Tensor | None = None) -> bool:
        mixer = builder("relu(m=24)", limits)(head_dim=16, tokens=65, causal=causal)
        with Products() as products:
            mixer(q, k, v, key_mask=key_mask)
        assert ("in bf16" in mixer.explain(q, k, v, key_mask)) == (HALF in products.types)
        return HALF in products.types

    assert uses_bf16()
    assert not uses_bf16(key_mask=mask)
    assert not uses_bf16(causal=True)
    assert not uses_bf16(replace(BLOCKED, bf16_block_elements=65 * 24 - 1)), "a head has to fit into one block"
    assert not uses_bf16(replace(BLOCKED, bf16_products=False))


def test_only_relu_with_random_rows_allows_bf16() -> None:
    """Test the rounding of a kernel before adding it here. eps must be small compared to the features. Without a
    projection, adding eps would round the tokens themselves.
    """
    specs = [
        *KERNELS,
        *(f"{name}(m=8)" for name in ("relu", "elu", "gelu", "exp")),
        "relu(m=8, eps=0.3)",
        "relu(m=8, learned=True)",
        "relu(m=8, bias=True)",
    ]
    kernels = {spec: KERNELS.build(spec, head_dim=8, layer=0, seed=0) for spec in specs}
    allowed = [spec for spec, kernel in kernels.items() if cpu_kernel(kernel).allows_bf16(kernel)]
    assert allowed == ["relu(m=8)"]
