"""Softmax attention of half precision trained on a CPU: what fp64 gives on the same inputs, but for the rounding of
what is kept.

Processors that multiply bf16 take another way than others; both are tried on any."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from checks import Products, assert_close, builder, gradients, tensors
from favorit.attention import explicit, precision


@pytest.fixture(autouse=True, params=[True, False], ids=["multiplies", "converts"])
def multiplies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the processor is one that multiplies bf16; everything that is long enough is worth keeping weights."""
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: request.param)
    monkeypatch.setattr(explicit, "FEWEST_KEPT", 0)
    return bool(request.param)


ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # half a unit in the last place of the largest number


def exact(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> list[Tensor]:
    """Values and gradients of torch's kernel in fp64, for inputs as they were rounded."""
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    return [out, *gradients(out, *wide)]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("numbers", [1, 1 << 20])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [65, 197, 257])
def test_training_rounds_once(
    dtype: torch.dtype, numbers: int, causal: bool, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With explicit weights (not causal) and through torch's kernel; the probe of the gradients is rounded too."""
    monkeypatch.setattr(explicit, "BLOCK_NUMBERS", numbers)
    q, k, v = tensors(tokens, 16, dtype=dtype)
    out = builder("softmax")(head_dim=16, tokens=tokens, causal=causal)(q, k, v)
    found = [out, *gradients(out, q, k, v)]
    for mine, true in zip(found, exact(q, k, v, causal), strict=True):
        assert mine.dtype == dtype
        assert_close(mine.double(), true, 2 * ROUNDING[dtype])


@pytest.mark.parametrize(("size", "offset"), [(1, 0), (10, 0), (30, 0), (1, 30)])
def test_what_is_large_is_not_rounded_before_a_difference(size: float, offset: float) -> None:
    """A score of 50 rounded to bf16 is off by up to 0.1, and so would be the logarithm of its weight; what values have
    in common adds to the gradients of all weights of a row and cancels.
    """
    q, k, v = tensors(65, 16, dtype=torch.bfloat16)
    q, v = (q.detach() * size).requires_grad_(), (v.detach() + offset).requires_grad_()
    out = builder("softmax")(head_dim=16, tokens=65)(q, k, v)
    for mine, true in zip([out, *gradients(out, q, k, v)], exact(q, k, v), strict=True):
        assert_close(mine.double(), true, 2 * ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("tokens", [65, 257, 513])
@pytest.mark.parametrize("autocast", [False, True])
def test_products_are_made_in_the_type_that_is_fastest(tokens: int, autocast: bool, multiplies: bool) -> None:
    """In bf16 all but the scores on a processor that multiplies it; else in fp32, but for long sequences, which torch's
    kernel takes.
    """
    mixer = builder("softmax")(head_dim=16, tokens=tokens)
    q, k, v = tensors(tokens, 16, dtype=torch.float32 if autocast else torch.bfloat16)
    with Products() as products:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = mixer(q, k, v)
        gradients(out, q, k, v)
    assert len(products.types) > 1
    wide, half = {torch.float32}, {torch.bfloat16}
    if multiplies:
        assert products.types[-5:] == [half] * 5
        assert all(types == wide for types in products.types[:-5])
    elif tokens <= 512:
        assert all(types == wide for types in products.types)
    else:
        assert all(torch.bfloat16 in types for types in products.types), (
            "the backward has sums of exponentials in fp32 besides"
        )


def test_weights_in_bf16_are_all_that_is_kept_of_their_size(multiplies: bool) -> None:
    q, k, v = tensors(65, 16, dtype=torch.bfloat16)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        builder("softmax")(head_dim=16, tokens=65)(q, k, v)
    large = [t.dtype for t in kept if t.numel() == q.shape[:-1].numel() * 65]
    assert large == [torch.bfloat16 if multiplies else torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, *ROUNDING])
@pytest.mark.parametrize("queries", [1, 3])
def test_few_queries_of_tokens_that_are_keys_and_values(
    dtype: torch.dtype, queries: int, multiplies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of x as keys and as values are one product; a tensor of its own for each takes another way to the
    same.
    """
    q, x, _ = tensors(queries, 16, n_keys=50, dtype=dtype)
    monkeypatch.setattr(explicit, "FEWEST_KEPT", q.shape[:-1].numel() * 50 + 1)
    known = dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies)
    assert (explicit.explicit_way(q, x, x) is explicit.OfTokens) == known
    assert explicit.explicit_way(q, x, x.clone()) is None
    assert explicit.explicit_way(x, x, x) is not explicit.OfTokens, "as many queries as tokens are not few"
    out = builder("softmax")(head_dim=16, tokens=50)(q, x, x)
    wide = [t.detach().double().requires_grad_() for t in (q, x)]
    true = torch.nn.functional.scaled_dot_product_attention(wide[0], wide[1], wide[1])
    for mine, twin in zip([out, *gradients(out, q, x)], [true, *gradients(true, *wide)], strict=True):
        assert mine.dtype == dtype
        assert_close(mine.double(), twin, 2 * ROUNDING.get(dtype, 5e-7))


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize(
    "types", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)]
)
@pytest.mark.parametrize("half", ROUNDING)
def test_all_of_a_step_under_autocast(same: bool, types: tuple[torch.dtype, torch.dtype], half: torch.dtype) -> None:
    """Also the way back, which users are told to leave out; of queries and of tokens as they come from other layers."""
    q, x, other = tensors(3, 16, n_keys=50, dtype=torch.bfloat16)
    q, x, v = (
        t.detach().to(dtype).requires_grad_()
        for t, dtype in zip((q, x, x if same else other), (*types, types[1]), strict=True)
    )
    v = x if same else v
    with torch.autocast("cpu", dtype=half):
        out = builder("softmax")(head_dim=16, tokens=50)(q, x, v)
        found = gradients(out, q, x, v)
    wide_q, wide_x, wide_v = (t.detach().double().requires_grad_() for t in (q, x, v))
    wide_v = wide_x if same else wide_v
    true = torch.nn.functional.scaled_dot_product_attention(wide_q, wide_x, wide_v)
    for mine, twin in zip([out, *found], [true, *gradients(true, wide_q, wide_x, wide_v)], strict=True):
        assert_close(mine.double(), twin, 2 * ROUNDING[torch.bfloat16])


def test_transforms_of_functions_take_the_kernel_of_torch() -> None:
    """torch.func goes through what it knows; gradients are the same."""
    q, x, _ = tensors(3, 16, n_keys=50)
    mixer = builder("softmax")(head_dim=16, tokens=50)
    found = torch.func.grad(lambda q, x: mixer(q, x, x).square().sum(), argnums=(0, 1))(q.detach(), x.detach())
    for mine, twin in zip(found, torch.autograd.grad(mixer(q, x, x).square().sum(), (q, x)), strict=True):
        assert_close(mine, twin, 1e-6)


@pytest.mark.parametrize("numbers", [1, 2 * 40 * 50, 1 << 20])
def test_masks_odd_shapes_views_and_types_that_autocast_makes_alike(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 images in blocks of 1, of 2, 2 and 1, and of all; 40 queries, 50 keys, values of another width; k in fp32, as a
    gate leaves it.
    """
    monkeypatch.setattr(explicit, "BLOCK_NUMBERS", numbers)
    mixer = builder("softmax")(head_dim=8, tokens=50)
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
        true = mixer.weights(*(x.transpose(1, 2) for x in wide[:2]), key_mask=mask) @ wide[2].transpose(1, 2)
        assert_close(out.double(), true, 2 * ROUNDING[torch.bfloat16])
        for mine, twin in zip(gradients(out, q, k, v), gradients(true, *wide), strict=True):
            assert_close(mine.double(), twin, 2 * ROUNDING[torch.bfloat16])


def test_types_that_differ_are_refused_as_torch_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(9, 4)
    with pytest.raises(RuntimeError, match="same dtype"):
        builder("softmax")(head_dim=4, tokens=9)(q, k, v.double())


@pytest.mark.parametrize("tokens", [65, 257])
def test_under_autocast_it_returns_what_autocast_asks_for_and_gradients_as_inputs_are(tokens: int) -> None:
    q, k, v = (x.detach().bfloat16().float().requires_grad_() for x in tensors(tokens, 16))
    mixer = builder("softmax")(head_dim=16, tokens=tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mixer(q, k, v)
    assert out.dtype == torch.bfloat16
    for mine, true in zip([out, *gradients(out, q, k, v)], exact(q, k, v), strict=True):
        assert mine is out or mine.dtype == torch.float32
        assert_close(mine.double(), true, 2 * ROUNDING[torch.bfloat16])


def test_which_way_half_precision_takes(multiplies: bool) -> None:
    """fp32 where it is faster: in training, not for long sequences, and not bf16 that is multiplied as it is."""
    mixer = builder("softmax")(head_dim=4, tokens=513)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    for tokens, context, dtype, way in [
        (
            512,
            nullcontext(),
            torch.bfloat16,
            "explicit weights in bf16" if multiplies else "in fp32: torch's fused kernel",
        ),
        (513, nullcontext(), torch.bfloat16, "explicit weights in bf16" if multiplies else "torch's fused kernel"),
        (65, nullcontext(), torch.float16, "in fp32: explicit weights in fp32"),
        (512, nullcontext(), torch.float16, "in fp32: torch's fused kernel"),
        (513, nullcontext(), torch.float16, "torch's fused kernel"),
        (512, nullcontext(), torch.float32, "torch's fused kernel"),
        (512, torch.no_grad(), torch.bfloat16, "torch's fused kernel"),
        (512, autocast, torch.float32, "explicit weights in bf16" if multiplies else "in fp32: torch's fused kernel"),
    ]:
        with context:
            assert mixer.explain(*tensors(tokens, 4, dtype=dtype)).startswith(way)


def test_too_many_weights_are_not_kept_in_bf16_either(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(50, 4, dtype=torch.bfloat16)
    monkeypatch.setattr(explicit, "MOST_KEPT", q.shape[:-1].numel() * 50 - 1)
    assert explicit.explicit_way(q, k, v) is None
