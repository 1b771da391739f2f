"""Causal linear attention: prefix sums over blocks of tokens, for some heads of some images at a time, made again going
back.

Shapes: B batch, H heads, N tokens, D head width, E = D + 1, M features, G heads of images, C tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from favorit.attention import streamed
from favorit.attention.blocks import even, slices
from favorit.attention.kernel import Kernel
from favorit.attention.streamed import SAFE, TINY, least_weight

# Tokens of a block: weights within it are C M for each token, sums before it 2 M E whatever C is.
BLOCK = 64

# (q, k, v, key_mask) -> out: what is to be made again
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def prefix_sums(phi_q: Tensor, phi_k: Tensor, r: Tensor | None, v: Tensor, least: float = 0.0) -> Tensor:
    """out_i = sum_{j<=i} phi(q_i) . phi(k_j) e_j v_j / sum_{j<=i} phi(q_i) . phi(k_j) e_j, e_j = exp(r_j); O(N (M D + C
    (M + D))).

    Everything about key j is kept relative to the running maximum of r at the query that reads it, and rescaled as the
    maximum grows: with one maximum for all keys, a late key could push every earlier one below the smallest float. No
    feature is below `least`.
    """
    shape = (*phi_q.shape[:-1], v.shape[-1])
    phi_q, phi_k, v = phi_q.flatten(0, 1), phi_k.flatten(0, 1), v.flatten(0, 1)
    n_queries, n_both = phi_q.shape[1], min(phi_q.shape[1], phi_k.shape[1])
    # The normaliser is one more column of v: the sum of weights comes out of the same products as their sum of values.
    v_and_one = F.pad(v, (0, 1), value=1.0)
    state = v.new_zeros(v.shape[0], phi_k.shape[-1], v_and_one.shape[-1])
    sums, seen = [], v_and_one
    if r is not None:
        r = r.flatten(0, 1)
        seen = v_and_one * (r > -torch.inf)
        top = r.new_full((v.shape[0], 1, 1), torch.finfo(r.dtype).min)
    rows = slices(n_both, even(n_both, BLOCK))
    # Pieces of one split, whose gradients are put together once; each slice of its own would have a gradient as large
    # as the whole.
    q_pieces, k_pieces, v_pieces = (_pieces(x, rows) for x in (phi_q, phi_k, v_and_one))
    r_pieces = None if r is None else _pieces(r, rows)
    for number, place in enumerate(rows):
        phi_q_C, phi_C, v_C = q_pieces[number], k_pieces[number], v_pieces[number]
        within, before, scaled = torch.bmm(phi_q_C, phi_C.mT), torch.bmm(phi_q_C, state), v_C
        if r_pieces is not None:
            r_C = r_pieces[number]
            tops = torch.maximum(r_C.cummax(-2).values, top)
            within = within * torch.exp(torch.minimum(r_C.mT - tops, torch.zeros_like(tops)))
            before, last = before * torch.exp(top - tops), tops[:, -1:]
            state, scaled, top = state * torch.exp(top - last), torch.exp(r_C - last) * v_C, last
        sums.append(torch.baddbmm(before, within.tril(), v_C))
        if place.stop < n_queries:
            state = torch.baddbmm(state, phi_C.mT, scaled)
    if n_queries > n_both:
        # Queries beyond the last key see all keys.
        sums.append(torch.bmm(q_pieces[-1], state))
    values, weight = torch.cat(sums, -2).split([v.shape[-1], 1], -1)
    if r is None and least > SAFE:
        return (values / weight).view(shape)
    totals = seen[:, :n_both].cumsum(-2)
    totals = torch.cat([totals, totals[:, -1:].expand(-1, n_queries - n_both, -1)], -2)
    return ((values + TINY * totals[..., :-1]) / (weight + least_weight(totals[..., -1:]))).view(shape)


def _pieces(x: Tensor, rows: list[slice]) -> tuple[Tensor, ...]:
    """(G,N,...) in these rows, and what is left behind them."""
    return x.split([*(place.stop - place.start for place in rows), x.shape[1] - rows[-1].stop], 1)


def recomputed(attend: Attend, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """attend(q, k, v, key_mask) with nothing kept for the backward but q, k and v: it is made again, part by part."""
    return _Recomputed.apply(attend, kernel, key_mask, q, k, v, *kernel.parameters())


def part_sizes(batch: int, heads: int, tokens: int, features: int) -> tuple[int, int]:
    """(images, heads) of a part: all heads of as many images as fit, of a single one as many heads as fit."""
    images = even(batch, streamed.BLOCK_NUMBERS // (heads * tokens * features))
    return images, heads if images > 1 else even(heads, streamed.BLOCK_NUMBERS // (tokens * features))


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        attend: Attend,
        kernel: Kernel,
        key_mask: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.attend, ctx.kernel, ctx.key_mask, ctx.parts = attend, kernel, key_mask, _parts(kernel, q, k)
        out = v.new_empty(*q.shape[:-1], v.shape[-1])
        for part in ctx.parts:
            out[part] = attend(q[part], k[part], v[part], _of(key_mask, part))
        # Features are made again going back. The buffers are kept so that torch refuses to when they were redrawn
        # meanwhile.
        ctx.save_for_backward(q, k, v, *parameters, *kernel.buffers())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *others = ctx.saved_tensors
        parameters = others[: len(list(ctx.kernel.parameters()))]
        trained = [p for p in parameters if p.requires_grad]
        grads, totals = [torch.empty_like(x) for x in (q, k, v)], [torch.zeros_like(p) for p in trained]
        for part in ctx.parts:
            leaves = [x[part].detach().requires_grad_() for x in (q, k, v)]
            with torch.enable_grad(), torch.autocast(q.device.type, enabled=False):
                out = ctx.attend(*leaves, _of(ctx.key_mask, part))
            found = torch.autograd.grad(out, (*leaves, *trained), grad_out[part], materialize_grads=True)
            for grad, of_part in zip(grads, found):
                grad[part] = of_part
            for total, of_part in zip(totals, found[len(grads) :]):
                total += of_part
        of_trained = iter(totals)
        return None, None, None, *grads, *(next(of_trained) if p.requires_grad else None for p in parameters)


def _parts(kernel: Kernel, q: Tensor, k: Tensor) -> list[tuple[slice, slice]]:
    batch, heads = q.shape[:2]
    images, together = part_sizes(batch, heads, max(q.shape[-2], k.shape[-2]), kernel.features)
    return [(i, h) for i in slices(batch, images) for h in slices(heads, together)]


def _of(key_mask: Tensor | None, part: tuple[slice, slice]) -> Tensor | None:
    return None if key_mask is None else key_mask[part[0]]
