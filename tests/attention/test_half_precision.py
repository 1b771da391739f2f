"""Softmax attention of half precision trained on a CPU: what fp32 gives on the same inputs, rounded once."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

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
