"""Softmax attention of half precision trained on a CPU: what fp32 gives on the same inputs, rounded once."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from checks import assert_close, builder, gradients, tensors
from favorit.attention import softmax

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
def test_training_rounds_once(dtype: torch.dtype, numbers: int, causal: bool, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With explicit weights (up to 200 tokens, not causal) and through torch's kernel; the probe of the gradients is rounded too."""
    monkeypatch.setattr(softmax, "FEWEST_KEPT", 0)
    monkeypatch.setattr(softmax, "BLOCK_NUMBERS", numbers)
    q, k, v = tensors(tokens, 16, dtype=dtype)
    out = builder("softmax")(head_dim=16, tokens=tokens, causal=causal)(q, k, v)
    found = [out, *gradients(out, q, k, v)]
    for mine, true in zip(found, exact(q, k, v, causal), strict=True):
        assert mine.dtype == dtype
        assert_close(mine.double(), true, 2 * ROUNDING[dtype])


class Products(TorchDispatchMode):
    """The types that products and torch's kernel see, forward and back."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in ("bmm", "aten.mm", "scaled_dot_product")):
            self.types |= {x.dtype for x in args if isinstance(x, Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("tokens", "halved"), [(65, False), (257, False), (513, True)])
@pytest.mark.parametrize("autocast", [False, True])
def test_no_product_is_made_in_half_precision_where_that_is_slower(
    tokens: int, halved: bool, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "FEWEST_KEPT", 0)
    mixer = builder("softmax")(head_dim=16, tokens=tokens)
    q, k, v = tensors(tokens, 16, dtype=torch.float32 if autocast else torch.bfloat16)
    with Products() as products:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = mixer(q, k, v)
        gradients(out, q, k, v)
    assert torch.float32 in products.types, "sums of exponentials are kept in fp32 in any case"
    assert (torch.bfloat16 in products.types) == halved


@pytest.mark.parametrize("numbers", [1, 2 * 40 * 50, 1 << 20])
def test_masks_odd_shapes_views_and_types_that_autocast_makes_alike(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 images in blocks of 1, of 2, 2 and 1, and of all; 40 queries, 50 keys, values of another width; k in fp32, as a gate leaves it."""
    monkeypatch.setattr(softmax, "FEWEST_KEPT", 0)
    monkeypatch.setattr(softmax, "BLOCK_NUMBERS", numbers)
    mixer = builder("softmax")(head_dim=8, tokens=50)
    source = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(5, n, 3, d, generator=source).to(torch.bfloat16).requires_grad_() for n, d in ((40, 8), (50, 8), (50, 6)))
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
    monkeypatch.setattr(softmax, "FEWEST_KEPT", 0)
    q, k, v = tensors(9, 4)
    with pytest.raises(RuntimeError, match="same dtype"):
        builder("softmax")(head_dim=4, tokens=9)(q, k, v.double())


@pytest.mark.parametrize("tokens", [65, 257])
def test_under_autocast_it_returns_what_autocast_asks_for_and_gradients_as_inputs_are(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "FEWEST_KEPT", 0)
    q, k, v = tensors(tokens, 16)
    mixer = builder("softmax")(head_dim=16, tokens=tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mixer(q, k, v)
    assert out.dtype == torch.bfloat16
    for mine, true in zip([out, *gradients(out, q, k, v)], exact(q, k, v), strict=True):
        assert_close(mine.double(), true, 2 * ROUNDING[torch.bfloat16])


def test_which_way_half_precision_takes() -> None:
    """fp32 where it is faster: in training, and not for long sequences."""
    mixer = builder("softmax")(head_dim=4, tokens=513)
    for tokens, context, dtype, faster in [
        (512, nullcontext(), torch.bfloat16, True),
        (513, nullcontext(), torch.bfloat16, False),
        (512, nullcontext(), torch.float32, False),
        (512, torch.no_grad(), torch.bfloat16, False),
        (512, torch.autocast("cpu", dtype=torch.bfloat16), torch.float32, True),
    ]:
        q, k, v = tensors(tokens, 4, dtype=dtype)
        with context:
            assert softmax.is_faster_wide(q, k, v) == faster
            assert mixer.explain(q, k, v).endswith("in fp32") == faster
