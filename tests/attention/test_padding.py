"""Masked tokens of the attention layer may contain anything: uninitialized padding changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from favorit.attention import Attention
from favorit.selftest.inputs import gradients

GRID = (3, 4)
MASK = torch.ones(2, 13, dtype=torch.bool)
MASK[0, 9:] = False
MASK[1, 5] = False
GARBAGE = (torch.nan, torch.inf, -torch.inf, 1e38, -3e20)
LAYERS: list[dict[str, Any]] = [
    dict(mixer="softmax"),
    dict(mixer="relu(m=8)", qk_norm=True),
    dict(mixer="favor(m=8)", position="rope2d"),
    dict(mixer="favor(m=8)", position="learned+irpe_gate"),
    dict(mixer="linformer(k=3)", local="dwconv(3)"),
    dict(mixer="uniform", local="dwconv(3)"),
]


def layer_of(options: dict[str, Any]) -> Attention:
    torch.manual_seed(0)
    return Attention(16, 4, **options, grid=GRID, prefix=1, seed=0)


def tokens(padding: float) -> Tensor:
    x = torch.randn(2, 13, 16, generator=torch.Generator().manual_seed(1))
    return torch.where(MASK[..., None], x, padding).requires_grad_()


@pytest.mark.parametrize("num_queries", [None, 1])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_garbage_in_masked_tokens_changes_no_output_and_no_gradient(
    options: dict[str, Any], dtype: torch.dtype | None, num_queries: int | None
) -> None:
    """Also the gradients of all weights. Backward starts at the kept tokens only."""
    layer = layer_of(options)
    kept = MASK[:, :num_queries, None]
    results = []
    for padding in (0.0, *GARBAGE):
        x = tokens(padding)
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            out = layer(x, GRID, 1, key_mask=MASK, num_queries=num_queries)
        assert out.isfinite().all()
        found = gradients(torch.where(kept, out.float(), 0.0), x, *layer.parameters())
        assert not found[0][~MASK].any()
        results.append([out[kept.expand_as(out)], *found])
    for other in results[1:]:
        for mine, expected in zip(other, results[0], strict=True):
            assert torch.equal(mine, expected)


@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_attention_map_of_garbage_in_masked_tokens_is_that_of_zeros(options: dict[str, Any]) -> None:
    layer = layer_of(options)
    expected = layer.weights(tokens(0.0), GRID, 1, key_mask=MASK)
    assert expected.isfinite().all()
    for padding in GARBAGE:
        assert torch.equal(layer.weights(tokens(padding), GRID, 1, key_mask=MASK), expected)


def test_ordinary_masked_tokens_are_still_queries() -> None:
    """For example a class token that reads the others but is not read."""
    layer = layer_of(dict(mixer="softmax"))
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[:, 0] = False
    x = tokens(1.0).detach()
    q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in layer.qkv(x).chunk(3, -1))
    alone = torch.nn.functional.scaled_dot_product_attention(q[:, :, :1], k[:, :, 1:], v[:, :, 1:])
    expected = layer.out(alone.transpose(1, 2).flatten(2))
    assert torch.allclose(layer(x, GRID, 1, key_mask=mask)[:, :1], expected, atol=1e-6)
