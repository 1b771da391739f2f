"""Softmax attention: the exact baseline of every comparison.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from favorit.attention.blocks import even, slices
from favorit.attention.mixer import MIXERS, Mixer, Tokens, allowed_keys, full_precision, output_dtype

# Up to this many tokens, training on a CPU is 1.1 to 1.5 times faster with explicit weights in blocks than with torch's fused kernel
# (LOG.md), as long as the weights that are kept, in numbers, are worth the calls, and small beside the activations of a model.
SHORT = 200
FEWEST_KEPT, MOST_KEPT = 1 << 19, 1 << 24
BLOCK_NUMBERS = 1 << 20
# Up to this many tokens, torch's kernel on a CPU goes back faster in fp32 than in half precision (LOG.md: at 65 tokens 4 times).
FASTER_WIDE = 512
HALVES = (torch.bfloat16, torch.float16)


@MIXERS.register("softmax")
class Softmax(Mixer):
    """w = softmax(q k^T / sqrt(D)); O(N^2 D) time, through torch's fused kernel, which keeps O(N) memory.

    Training on short sequences on a CPU keeps the weights instead, 2 to 64 MiB of them, and takes half precision as fp32.
    """

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        if key_mask is None and not self.causal and is_short(q, k, v):
            return _Short.apply(q, k, v)
        if is_faster_wide(q, k, v):
            dtype = output_dtype(v)
            with full_precision(q, k, v) as wide:
                return Softmax.forward(self, *wide, key_mask=key_mask).to(dtype)
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed_keys(q, k, key_mask, self.causal))

    def explain(self, q: Tensor, k: Tensor, v: Tensor) -> str:
        if not self.causal and is_short(q, k, v):
            return (
                f"explicit weights in fp32, in blocks of {_images(q, k)} images and a head: "
                f"training on a CPU with at most {SHORT} tokens and {FEWEST_KEPT >> 18} to {MOST_KEPT >> 18} MiB of weights"
            )
        return "torch's fused kernel" + (" in fp32" if is_faster_wide(q, k, v) else "")

    def read(self, q: Tensor, tokens: Tokens) -> Tensor:
        """out_i = W_v sum_j w_ij x_j + b_v, w_i = softmax((W_k^T q_i) . x_j / sqrt(D)): b_k adds the same to all scores of a query.

        No product is as large as all tokens times a projection. All heads see the same tokens, and so are more queries of one head.
        """
        if not self._folds(q):
            return super().read(q, tokens)
        return tokens.values(self(*_folded(q, tokens)).unflatten(2, q.shape[1:3])[:, 0])

    def explain_read(self, q: Tensor, tokens: Tokens) -> str:
        if not self._folds(q):
            return super().explain_read(q, tokens)
        few = f"projections folded into the queries, {q.shape[-2]} to a head of width {q.shape[-1]}"
        return f"{few}: {self.explain(*_folded(q, tokens))}"

    def _folds(self, q: Tensor) -> bool:
        """Whether scores of C-wide tokens are fewer operations than the projections: H Nq C < C H D for each token.

        A forward of another class may be other mathematics.
        """
        return type(self).forward is Softmax.forward and not self.causal and q.shape[-2] < q.shape[-1]

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, k) as (q, k):
            scores = q @ k.mT / q.shape[-1] ** 0.5
            allowed = allowed_keys(q, k, key_mask, self.causal)
            if allowed is None:
                return scores.softmax(-1)
            # A row without keys is 0/0; torch's kernel returns zeros there, and so does this.
            return scores.masked_fill(~allowed, -torch.inf).softmax(-1).masked_fill(~allowed, 0.0)


def _folded(q: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of one head as wide as the tokens (B,1,H Nq,C), (B,1,N,C): W_k^T q, scaled as if a head were D wide, and x twice."""
    x, of_keys = tokens.x.unsqueeze(1), tokens.weight[0]
    asked = torch.einsum("bhid,hdc->bhic", q * (x.shape[-1] / q.shape[-1]) ** 0.5, of_keys)
    return asked.flatten(1, 2).unsqueeze(1), x, x


def is_short(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether explicit weights are the faster way: a function of shapes, types, device and whether gradients are wanted."""
    known = all(x.dtype in (torch.float32, *HALVES) for x in (q, k, v))
    alike = q.dtype == k.dtype == v.dtype or torch.is_autocast_enabled(q.device.type)  # which would make them alike
    small = max(q.shape[-2], k.shape[-2]) <= SHORT and FEWEST_KEPT <= q.shape[:-1].numel() * k.shape[-2] <= MOST_KEPT
    return _trains_on_cpu(q, k, v) and known and alike and small


def is_faster_wide(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch's kernel takes half precision better as fp32: a function of the same."""
    return _trains_on_cpu(q, k, v) and output_dtype(v) in HALVES and max(q.shape[-2], k.shape[-2]) <= FASTER_WIDE


def _trains_on_cpu(q: Tensor, k: Tensor, v: Tensor) -> bool:
    wanted = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return wanted and q.device.type == "cpu" and not torch.compiler.is_compiling()


class _Short(torch.autograd.Function):
    """Softmax attention with its weights kept, in blocks that stay in cache.

    A block is one head of some images: their tokens, views of the packed projection, then lie at even distances and are multiplied where
    they are, without a copy; those in half precision are copied to fp32.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        images = _images(q, k)
        w = q.new_empty(q.shape[1], q.shape[0], q.shape[2], k.shape[2], dtype=torch.float32)
        # In the layout of the packed projection that q usually is a view of, the layer's output needs no copy.
        out = v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1], dtype=output_dtype(v)).transpose(1, 2)
        scores, mixed = w.new_empty(images, *w.shape[2:]), w.new_empty(images, q.shape[2], v.shape[-1])
        queries, keys, values = (_wide(x, images) for x in (q, k, v))
        for b, h in _blocks(q, images):
            some = slice(b.stop - b.start)
            w_h = torch.softmax(_product(queries(b, h), keys(b, h).mT, scores[some], q.shape[-1] ** -0.5), -1, out=w[h, b])
            out[b, h] = torch.bmm(w_h, values(b, h), out=mixed[some])
        ctx.save_for_backward(q, k, v, w)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, w = ctx.saved_tensors
        images, scale = _images(q, k), q.shape[-1] ** -0.5
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        scores = w.new_empty(images, *w.shape[2:])
        of_q, of_k, of_v = (w.new_empty(images, *x.shape[2:]) for x in (q, k, v))
        queries, keys, values, grads = (_wide(x, images) for x in (q, k, v, grad_out))
        for b, h in _blocks(q, images):
            some, grad_h, w_h = slice(b.stop - b.start), grads(b, h), w[h, b]
            grad_v[b, h] = torch.bmm(w_h.mT, grad_h, out=of_v[some])
            of_w = torch.bmm(grad_h, values(b, h).mT, out=scores[some])
            of_scores = torch.ops.aten._softmax_backward_data.out(of_w, w_h, -1, w.dtype, grad_input=of_w)
            grad_q[b, h] = _product(of_scores, keys(b, h), of_q[some], scale)
            grad_k[b, h] = _product(of_scores.mT, queries(b, h), of_k[some], scale)
        return grad_q, grad_k, grad_v


def _wide(x: Tensor, images: int) -> Callable[[slice, int], Tensor]:
    """Head h of images b in fp32: a view of x (B,H,N,D), or a copy in memory for a block."""
    if x.dtype == torch.float32:
        return lambda b, h: x[b, h]
    room = x.new_empty(images, *x.shape[2:], dtype=torch.float32)
    return lambda b, h: room[: b.stop - b.start].copy_(x[b, h])


def _images(q: Tensor, k: Tensor) -> int:
    """The images of a block: as many as fit."""
    return even(len(q), BLOCK_NUMBERS // (q.shape[2] * k.shape[2]))


def _blocks(q: Tensor, images: int) -> list[tuple[slice, int]]:
    return [(b, h) for b in slices(len(q), images) for h in range(q.shape[1])]


def _product(a: Tensor, b: Tensor, room: Tensor, scale: float) -> Tensor:
    """scale a b, written to `room`."""
    return torch.baddbmm(room, a, b, beta=0, alpha=scale, out=room)
