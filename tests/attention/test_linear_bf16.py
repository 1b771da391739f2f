"""Linear attention of bf16 that is multiplied as it is: what fp64 gives on the same inputs, but for the rounding of
features and sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from checks import Products, assert_close, builder, gradients, tensors
from favorit.attention import KERNELS, Linear, precision, streamed
from favorit.attention.mixer import UnprojectedTokens

ROUNDING = 2**-8
HALF, WIDE = {torch.bfloat16}, {torch.float32}


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is worth cutting into blocks, on a processor that multiplies bf16."""
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: True)


def rounded(spec: str, head_dim: int = 16) -> Linear:
    """A mixer whose projection bf16 has: features on the wrong side of a kink are another function, not a rounding."""
    mixer = builder(spec)(head_dim=head_dim, tokens=65)
    assert isinstance(mixer, Linear)
    for buffer in mixer.buffers():
        buffer.copy_(buffer.bfloat16())
    return mixer


def values_and_gradients(mixer: Linear, inputs: Sequence[Tensor]) -> list[Tensor]:
    out = mixer(*inputs)
    return [out, *gradients(out, *inputs)]


def check(mixer: Linear, inputs: Sequence[Tensor], tolerance: float = 2 * ROUNDING) -> None:
    """In norm, as of many features some lie so near to the kink that rounding a product decides their slope."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = mixer.double().weights(*wide[:2]) @ wide[2]
    true = [out, *gradients(out, *wide)]
    for mine, twin in zip(values_and_gradients(mixer.float(), inputs), true, strict=True):
        assert mine.dtype == torch.bfloat16
        assert ((mine.double() - twin).norm() / twin.norm()).item() < tolerance


@pytest.mark.parametrize(("tokens", "blocks"), [(65, 4), (65, 2), (65, 1), (577, 1)])
@pytest.mark.parametrize(
    "spec", ["relu", "relu(m=24)", "relu(m=24, scale=sqrt, eps=1e-6)", "relu(m=24, eps=7e-3)", "relu(m=24, eps=0.3)"]
)
def test_values_and_gradients_are_off_by_roundings(
    spec: str, tokens: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of single heads, of two and of all; more tokens make sums longer, not the error larger."""
    mixer = rounded(spec)
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", 4 * tokens * mixer.kernel.features // blocks // 4)
    assert streamed.block_sizes(4, tokens, mixer.kernel.features, torch.bfloat16) == (4 // blocks, tokens)
    check(mixer, tensors(tokens, 16, dtype=torch.bfloat16))


@pytest.mark.parametrize("tokens", [65, 577])
@pytest.mark.parametrize("offset", [0.0, 30.0, 300.0])
def test_what_values_have_in_common_does_not_drown_the_gradients_of_their_weights(offset: float, tokens: int) -> None:
    q, k, v = tensors(tokens, 16, dtype=torch.bfloat16)
    check(rounded("relu(m=24)"), (q, k, (v.detach() + offset).requires_grad_()))


@pytest.mark.parametrize("tokens", [65, 577])
def test_what_counts_as_common_is_what_keys_of_weight_have(tokens: int) -> None:
    """Half of the keys hardly count, and their values are far from those that do."""
    q, k, v = (x.detach() for x in tensors(tokens, 16, dtype=torch.bfloat16))
    light = torch.arange(tokens)[:, None] % 2 == 0
    k, v = torch.where(light, k / 8, k), torch.where(light, v - 10, v + 10)
    check(rounded("relu(m=24)"), [x.requires_grad_() for x in (q, k, v)])


@pytest.mark.parametrize("tokens", [65, 577])
def test_values_of_keys_that_nobody_asks_for_do_not_round_the_others(tokens: int) -> None:
    """Half of the keys have features that queries do not have, and values far from the others."""
    q, k, v = (x.detach() for x in tensors(tokens, 16, dtype=torch.bfloat16))
    first, seen = torch.arange(16) < 8, torch.arange(tokens)[:, None] % 2 == 0
    q = torch.where(first, q, -q.abs())
    k = torch.where(first == seen, k, -k.abs())
    check(rounded("relu"), [x.requires_grad_() for x in (q, k, torch.where(seen, v, v + 100))])


def test_other_numbers_of_queries_views_and_values_of_another_width() -> None:
    source = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(5, n, 3, d, generator=source).to(torch.bfloat16) for n, d in ((40, 8), (50, 8), (50, 6)))
    check(rounded("relu(m=24)", head_dim=8), [x.transpose(1, 2).requires_grad_() for x in (q, k, v)])


def test_rows_without_features_are_the_mean_of_values() -> None:
    """And their gradients go to all values alike: all features at their floor, down to one whose square vanishes beside
    d and one that vanishes itself.
    """
    for eps in (1e-3, 1e-12, 1e-20, 1e-46):
        q, k, v = tensors(65, 16, dtype=torch.bfloat16)
        q, k = (-x.detach().abs() for x in (q, k))
        out, true = rounded(f"relu(eps={eps})")(q, k, v), v.double().mean(-2, keepdim=True).expand_as(v)
        assert_close(out.double(), true, 2 * ROUNDING)
        assert_close(gradients(out, v)[0].double(), gradients(true, v)[0].double(), 2 * ROUNDING)


@pytest.mark.parametrize("autocast", [False, True])
def test_all_products_are_of_bf16(autocast: bool) -> None:
    """Forward and back, also with the backward inside autocast; gradients are of the inputs' type."""
    q, k, v = tensors(65, 16, dtype=torch.float32 if autocast else torch.bfloat16)
    mixer = rounded("relu(m=24)")
    with Products() as products, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = mixer(q, k, v)
        found = gradients(out, q, k, v)
    assert products.types.count(HALF) == 2 + 5 + 8, "for what outputs have in common, forward and back"
    assert products.types.count(WIDE) == 2, "what outputs have in common, and what rounding leaves of it"
    assert len(products.types) == 17
    assert out.dtype == torch.bfloat16
    assert all(gradient.dtype == q.dtype for gradient in found)


@pytest.mark.parametrize("eps", [1e-3, 7e-3])
def test_few_queries_of_tokens_are_weighed_in_bf16(eps: float) -> None:
    source = torch.Generator().manual_seed(5)
    q, x, weight = (torch.randn(shape, generator=source) for shape in ((2, 2, 1, 16), (2, 65, 32), (2, 2, 16, 32)))
    leaves = [q.bfloat16().requires_grad_(), x.bfloat16().requires_grad_(), (weight / 6).bfloat16().requires_grad_()]
    mixer = rounded(f"relu(m=24, eps={eps})")
    with Products() as products:
        read = mixer.read(leaves[0], UnprojectedTokens(leaves[1], leaves[2], None))
        found = gradients(read, *leaves)
    assert read.dtype == torch.bfloat16
    # The features of the one query, forward and back, are the only ones in fp32.
    assert sum(types == WIDE for types in products.types) == 2
    assert all(types in (HALF, WIDE) for types in products.types)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    k, v = torch.einsum("bnc,khdc->kbhnd", wide[1], wide[2])
    out = mixer.double().weights(wide[0], k) @ v
    for mine, twin in zip([read, *found], [out, *gradients(out, *wide)], strict=True):
        assert ((mine.double() - twin).norm() / twin.norm()).item() < 4 * ROUNDING


@pytest.mark.parametrize("spec", ["favor(m=24)", "elu(m=24)", "relu(m=24, learned=True)", "mixture"])
def test_kernels_that_would_be_off_by_more_are_computed_in_fp32(spec: str) -> None:
    mixer = builder(spec)(head_dim=16, tokens=65)
    assert isinstance(mixer, Linear)
    assert not mixer.kernel.rounds
    q, k, v = tensors(65, 16, dtype=torch.bfloat16)
    with Products() as products:
        gradients(mixer(q, k, v), q, k, v)
    assert products.types
    assert all(types == WIDE for types in products.types)


def test_masks_causal_attention_long_sequences_and_other_processors_take_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(65, 16, dtype=torch.bfloat16)
    mask = torch.ones(2, 65, dtype=torch.bool)

    def types(mixer: Linear, **options: Tensor) -> list[set[torch.dtype]]:
        with Products() as products:
            mixer(q, k, v, **options)
        assert options or ("in bf16" in mixer.explain(q, k, v)) == (HALF in products.types), "explained without a mask"
        return products.types

    mixer, causal = rounded("relu(m=24)"), builder("relu(m=24)")(head_dim=16, tokens=65, causal=True)
    assert isinstance(causal, Linear)
    assert HALF in types(mixer)
    assert HALF not in types(mixer, key_mask=mask)
    assert HALF not in types(causal)
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", 65 * 24 // 4 - 1)
    assert HALF not in types(mixer)
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", 1 << 20)
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: False)
    assert HALF not in types(mixer)


def test_only_kernels_of_a_homogeneous_function_by_hand_round() -> None:
    """Whoever adds one has to look at its rounding here. eps is small beside features, which are products: tokens
    themselves would be rounded by what is added to them.
    """
    specs = [
        *KERNELS,
        *(f"{name}(m=8)" for name in ("relu", "elu", "gelu", "exp")),
        "relu(m=8, eps=0.3)",
        "relu(m=8, learned=True)",
        "relu(m=8, bias=True)",
    ]
    assert [spec for spec in specs if KERNELS.build(spec, head_dim=8, layer=0, seed=0).rounds] == ["relu(m=8)"]
