"""Linear attention in parts of some heads of some images. Backward recomputes each part.

The features of a part stay in cache. Memory grows with N D and M D instead of N M. Above
`Limits.few_feature_elements` elements, causal attention uses it with the prefix sums of `prefix_sums.py`, and blocked
attention with the exponents of `exponential.py`, where a sum of weights would vanish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from favorit.attention.cpu import short
from favorit.attention.cpu.limits import Limits
from favorit.attention.cpu.tiling import chunks, even_chunk_size
from favorit.attention.derivatives import first_derivatives_only
from favorit.attention.exponential import exact_attention
from favorit.attention.kernels.contract import ExponentialKernel, Kernel
from favorit.autocast import without_autocast

Part = tuple[slice, slice]


def attend_causal(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, kernel: Kernel, limits: Limits) -> Tensor:
    """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D), (B,Nk) -> (B,H,Nq,D), in fp32 or fp64."""

    def attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return short.attend(q, k, v, key_mask, kernel, is_causal=True)

    return _Recomputed.apply(attend, kernel, limits, key_mask, q, k, v, *kernel.parameters())


def attend_exactly(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, kernel: ExponentialKernel, limits: Limits
) -> Tensor:
    """`exact_attention`, not causal, for the same shapes."""

    def attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return exact_attention(kernel, q, k, v, key_mask, is_causal=False)

    return _Recomputed.apply(attend, kernel, limits, key_mask, q, k, v, *kernel.parameters())


def part_sizes(batch: int, heads: int, tokens: int, features: int, limits: Limits) -> tuple[int, int]:
    """(images, heads) of one part: all heads of as many images as fit, or as many heads of one image as fit."""
    images = even_chunk_size(batch, limits.block_elements // (heads * tokens * features))
    return images, heads if images > 1 else even_chunk_size(heads, limits.block_elements // (tokens * features))


def parts(kernel: Kernel, limits: Limits, q: Tensor, k: Tensor) -> list[Part]:
    """The images and the heads of each part."""
    batch, heads = q.shape[:2]
    images, part_heads = part_sizes(batch, heads, max(q.shape[-2], k.shape[-2]), kernel.features, limits)
    return [(i, h) for i in chunks(batch, images) for h in chunks(heads, part_heads)]


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        attend: Callable[..., Tensor],
        kernel: Kernel,
        limits: Limits,
        key_mask: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.attend = attend
        ctx.kernel = kernel
        ctx.key_mask = key_mask
        ctx.parts = parts(kernel, limits, q, k)
        out = v.new_empty(*q.shape[:-1], v.shape[-1])
        for part in ctx.parts:
            out[part] = attend(q[part], k[part], v[part], _part_mask(key_mask, part))
        # Backward recomputes features. The buffers are saved so that torch raises if they were redrawn in between.
        ctx.save_for_backward(q, k, v, *parameters, *kernel.buffers())
        return out

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *others = ctx.saved_tensors
        parameters = others[: len(list(ctx.kernel.parameters()))]
        trained = [p for p in parameters if p.requires_grad]
        grads = [torch.empty_like(x) for x in (q, k, v)]
        trained_grads = [torch.zeros_like(p) for p in trained]
        for part in ctx.parts:
            part_q, part_k, part_v = (x[part].detach().requires_grad_() for x in (q, k, v))
            part_mask = _part_mask(ctx.key_mask, part)
            with torch.enable_grad(), without_autocast(q):
                out = ctx.attend(part_q, part_k, part_v, part_mask)
            inputs = (part_q, part_k, part_v, *trained)
            part_grads = torch.autograd.grad(out, inputs, grad_out[part], materialize_grads=True)
            for grad, part_grad in zip(grads, part_grads):
                grad[part] = part_grad
            for total, part_grad in zip(trained_grads, part_grads[len(grads) :]):
                total += part_grad
        sums = iter(trained_grads)
        return None, None, None, None, *grads, *(next(sums) if p.requires_grad else None for p in parameters)


def _part_mask(key_mask: Tensor | None, part: Part) -> Tensor | None:
    return None if key_mask is None else key_mask[part[0]]
