"""Softmax attention with its weights kept: on a CPU, training is faster that way than through torch's fused kernel,
where they are few.

    forward     w = softmax(q k^T / sqrt(D)),  out = w v
    backward    of w:  g v^T;  of scores s:  w * (of_w - sum_j w of_w);  of v:  w^T g;  of q and k:  of_s k / sqrt(D),
    of_s^T q / sqrt(D)

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from favorit.attention.blocks import even, slices
from favorit.attention.precision import full_precision, multiplied_in_bf16, output_dtype

# Up to this many tokens, fp32 is 1.1 to 1.5 times faster with explicit weights (LOG.md), as long as the weights that
# are kept, in numbers, are worth the calls, and small beside the activations of a model. bf16 is 1.1 to 1.6 times
# faster at any length that was tried.
SHORT = 200
FEWEST_KEPT, MOST_KEPT = 1 << 19, 1 << 24
BLOCK_NUMBERS = 1 << 20


def explicit_way(q: Tensor, k: Tensor, v: Tensor) -> type[InFp32] | type[InBf16] | type[OfTokens] | None:
    """The faster way to train, None where that is torch's: a function of shapes, types, processor, whether keys and
    values are the same tensor, and whether gradients are wanted.
    """
    if not trains_on_cpu(q, k, v):
        return None
    fp32, bf16 = {x.dtype for x in (q, k, v)} == {torch.float32} == {output_dtype(v)}, multiplied_in_bf16(q, k, v)
    kept = q.shape[:-1].numel() * k.shape[-2]
    if k is v and q.shape[-2] < q.shape[-1] and kept <= MOST_KEPT and (fp32 or bf16):
        return OfTokens
    if not FEWEST_KEPT <= kept <= MOST_KEPT:
        return None
    if bf16:
        return InBf16
    return InFp32 if fp32 and max(q.shape[-2], k.shape[-2]) <= SHORT else None


def trains_on_cpu(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether gradients by hand will be asked for; compilers and transforms (torch.func) make their own of torch's
    kernel.
    """
    wanted = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return (
        wanted
        and q.device.type == "cpu"
        and not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
    )


class InFp32(torch.autograd.Function):
    """In blocks that stay in cache.

    A block is one head of some images: their tokens, views of the packed projection, then lie at even distances and are
    multiplied where they are, without a copy.
    """

    @staticmethod
    def explain(q: Tensor, k: Tensor) -> str:
        images = even(len(q), _together(q, k))
        return (
            f"explicit weights in fp32, in blocks of {images} images and a head: "
            f"training on a CPU with at most {SHORT} tokens and {FEWEST_KEPT >> 18} to {MOST_KEPT >> 18} MiB of weights"
        )

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks, scores = _heads_of_images(q, k)
        w = q.new_empty(q.shape[1], q.shape[0], q.shape[2], k.shape[2])
        # In the layout of the packed projection that q usually is a view of, the layer's output needs no copy.
        out = v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
        mixed = v.new_empty(len(scores), q.shape[2], v.shape[-1])
        for b, h in blocks:
            some = slice(b.stop - b.start)
            w_h = torch.softmax(_product(q[b, h], k[b, h].mT, scores[some], q.shape[-1] ** -0.5), -1, out=w[h, b])
            out[b, h] = torch.bmm(w_h, v[b, h], out=mixed[some])
        ctx.save_for_backward(q, k, v, w)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, w = ctx.saved_tensors
        (blocks, scores), scale = _heads_of_images(q, k), q.shape[-1] ** -0.5
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        of_q, of_k, of_v = (w.new_empty(len(scores), *x.shape[2:]) for x in (q, k, v))
        for b, h in blocks:
            some, grad_h, w_h = slice(b.stop - b.start), grad_out[b, h], w[h, b]
            grad_v[b, h] = torch.bmm(w_h.mT, grad_h, out=of_v[some])
            of_scores = _softmax_backward(torch.bmm(grad_h, v[b, h].mT, out=scores[some]), w_h)
            grad_q[b, h] = _product(of_scores, k[b, h], of_q[some], scale)
            grad_k[b, h] = _product(of_scores.mT, q[b, h], of_k[some], scale)
        return grad_q, grad_k, grad_v


class InBf16(torch.autograd.Function):
    """Products in bf16, but scores in fp32, as fused kernels have it: rounded, a score of 50 would be off by 0.1, its
    weight by a tenth.

    Products are fastest with all heads of all images in one axis; only the scores go in blocks that stay in cache.
    """

    @staticmethod
    def explain(q: Tensor, k: Tensor) -> str:
        return (
            f"explicit weights in bf16, of scores in fp32 in blocks of {even(q.shape[:2].numel(), _together(q, k))} heads: "
            f"training on a CPU that multiplies bf16 with {FEWEST_KEPT >> 19} to {MOST_KEPT >> 19} MiB of weights"
        )

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.heads = q.shape[:2]
        q, k, v = (x.to(output_dtype(v)).reshape(-1, *x.shape[2:]) for x in (q, k, v))
        w, blocks = q.new_empty(*q.shape[:2], k.shape[1]), slices(len(q), even(len(q), _together(q, k)))
        scores, wide_q, wide_k = (q.new_empty(blocks[0].stop, *x.shape[1:], dtype=torch.float32) for x in (w, q, k))
        for some in blocks:
            room = slice(some.stop - some.start)
            # exp(s) = 2^(s / ln 2): torch's powers of two and four more passes take 0.6 of the time of its softmax in
            # place (LOG.md).
            s = _product(
                wide_q[room].copy_(q[some]),
                wide_k[room].copy_(k[some]).mT,
                scores[room],
                q.shape[-1] ** -0.5 / math.log(2),
            )
            s.sub_(s.amax(-1, keepdim=True)).exp2_()
            w[some] = s.div_(s.sum(-1, keepdim=True))
        ctx.save_for_backward(q, k, v, w)
        return torch.bmm(w, v).unflatten(0, ctx.heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:
        q, k, v, w = ctx.saved_tensors
        grad, scale = grad_out.reshape(-1, *grad_out.shape[2:]), q.shape[-1] ** -0.5
        # What is the same for all weights of a row has no gradient: without the mean of v, g v^T is small enough to be
        # rounded. A mean in bf16 leaves differences that bf16 has; they are taken in fp32, in which torch is five times
        # faster at it.
        of_w = torch.bmm(grad, (v - v.mean(1, keepdim=True).float()).to(v.dtype).mT)
        grad_v, of_scores = torch.bmm(w.mT, grad), _softmax_backward(of_w, w)
        grad_q, grad_k = torch.bmm(of_scores, k).mul_(scale), torch.bmm(of_scores.mT, q).mul_(scale)
        return tuple(x.unflatten(0, ctx.heads) for x in (grad_q, grad_k, grad_v))


class OfTokens(torch.autograd.Function):
    """Few queries of tokens that are keys and values at once: the tokens' two gradients are one product. Scores are in
    fp32.
    """

    @staticmethod
    def explain(q: Tensor, k: Tensor) -> str:
        return f"explicit weights of {q.shape[-2]} queries: training on a CPU with fewer queries than a token is wide ({q.shape[-1]})"

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.heads = q.shape[:2]
        q, x = (x.to(output_dtype(v)).reshape(-1, *x.shape[2:]) for x in (q, k))
        with full_precision(q, x) as (wide_q, wide_x):
            w = torch.softmax(torch.bmm(wide_q, wide_x.mT).mul_(q.shape[-1] ** -0.5), -1).to(x.dtype)
        ctx.save_for_backward(q, x, w)
        return torch.bmm(w, x).unflatten(0, ctx.heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, x, w = ctx.saved_tensors
        grad = grad_out.reshape(-1, *grad_out.shape[2:])
        with full_precision(grad, x, w) as (wide_grad, wide_x, wide_w):
            of_w = torch.bmm(wide_grad, wide_x.mT)
            of_scores = _softmax_backward(of_w, wide_w).mul_(q.shape[-1] ** -0.5).to(w.dtype)
            grad_x = torch.bmm(torch.cat([of_scores, w], 1).mT, torch.cat([q, grad], 1))
            return torch.bmm(of_scores, x).unflatten(0, ctx.heads), grad_x.unflatten(0, ctx.heads), None


def _together(q: Tensor, k: Tensor) -> int:
    """How many heads fit into a block."""
    return BLOCK_NUMBERS // (q.shape[-2] * k.shape[-2])


def _heads_of_images(q: Tensor, k: Tensor) -> tuple[list[tuple[slice, int]], Tensor]:
    """The images and the head of each block, and room for the scores of one."""
    images = even(len(q), _together(q, k))
    return [(b, h) for b in slices(len(q), images) for h in range(q.shape[1])], q.new_empty(
        images, q.shape[2], k.shape[2]
    )


def _product(a: Tensor, b: Tensor, room: Tensor, scale: float) -> Tensor:
    """scale a b, written to `room`."""
    return torch.baddbmm(room, a, b, beta=0, alpha=scale, out=room)


def _softmax_backward(of_w: Tensor, w: Tensor) -> Tensor:
    """The gradient of scores, in place of that of weights."""
    return torch.ops.aten._softmax_backward_data.out(of_w, w, -1, w.dtype, grad_input=of_w)
