"""Softmax attention: the exact baseline of every comparison.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from favorit.attention.mixer import MIXERS, Mixer, allowed_keys, full_precision

# Up to this many tokens, training on a CPU is 1.1 to 2.5 times faster with explicit weights in blocks than with torch's fused kernel
# (LOG.md); beyond, the weights no longer fit in cache and the fused kernel wins.
SHORT = 96
BLOCK_NUMBERS = 1 << 19


@MIXERS.register("softmax")
class Softmax(Mixer):
    """w = softmax(q k^T / sqrt(D)); O(N^2 D) time, through torch's fused kernel, which keeps O(N) memory.

    Training on short sequences on a CPU keeps the weights instead, at most 96 x 96 for each head.
    """

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        if key_mask is None and not self.causal and is_short(q, k, v):
            return _Short.apply(q, k, v)
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed_keys(q, k, key_mask, self.causal))

    def explain(self, q: Tensor, k: Tensor, v: Tensor) -> str:
        if not self.causal and is_short(q, k, v):
            return f"explicit weights in blocks of {_block(q, k)} images: training on a CPU with at most {SHORT} tokens"
        return "torch's fused kernel"

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, k) as (q, k):
            scores = q @ k.mT / q.shape[-1] ** 0.5
            allowed = allowed_keys(q, k, key_mask, self.causal)
            if allowed is None:
                return scores.softmax(-1)
            # A row without keys is 0/0; torch's kernel returns zeros there, and so does this.
            return scores.masked_fill(~allowed, -torch.inf).softmax(-1).masked_fill(~allowed, 0.0)


def is_short(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether explicit weights are the faster way: a function of shapes, device and whether gradients are wanted."""
    wanted = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    eager = not (torch.compiler.is_compiling() or torch.is_autocast_enabled(q.device.type))
    return wanted and eager and q.device.type == "cpu" and q.dtype == torch.float32 and max(q.shape[-2], k.shape[-2]) <= SHORT


class _Short(torch.autograd.Function):
    """Softmax attention with its weights kept, in blocks of images that stay in cache."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.block = _block(q, k)
        w = q.new_empty(*q.shape[:3], k.shape[2])
        # In the layout of the packed projection that q usually is a view of, the layer's output needs no copy.
        out = v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
        for b in _blocks(q, ctx.block):
            torch.softmax(q[b] * q.shape[-1] ** -0.5 @ k[b].mT, -1, out=w[b])
            out[b] = w[b] @ v[b]
        ctx.save_for_backward(q, k, v, w)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, w = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for b in _blocks(q, ctx.block):
            grad_v[b] = w[b].mT @ grad_out[b]
            of_scores = torch.ops.aten._softmax_backward_data(grad_out[b] @ v[b].mT, w[b], -1, w.dtype) * q.shape[-1] ** -0.5
            grad_q[b], grad_k[b] = of_scores @ k[b], of_scores.mT @ q[b]
        return grad_q, grad_k, grad_v


def _block(q: Tensor, k: Tensor) -> int:
    return min(len(q), max(1, BLOCK_NUMBERS // (q.shape[1] * q.shape[2] * k.shape[2])))


def _blocks(q: Tensor, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, len(q), size)]
