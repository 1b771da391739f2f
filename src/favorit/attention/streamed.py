"""Bidirectional linear attention in blocks that stay in cache, with a backward that recomputes features.

    forward     kz = sum_j e_j [v_j, 1] phi(k_j)^T,  e_j = exp(r_j - max r)
                [s_i, w_i] = kz phi(q_i),  out_i = (s_i + d sum v) / (w_i + d n),  n keys seen
    backward    the gradients of these products by hand, those of phi by autograd on the block's own features

Nothing of size N x M outlives a block: kept for the backward are q, k, v, out, w and, (D+1) x M for each head, kz.
Shapes: B batch, H heads, N tokens, D head width, M features, G images x heads of a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from favorit.attention.blocks import Gradients, Projected, even, slices
from favorit.attention.kernel import Kernel, Lift, Lifted, or_zero

# Added to the mean weight of a row: a row whose features all vanish becomes the mean of v instead of 0/0.
TINY = 1e-30
# Features of one block, in numbers: 4 MiB of fp32, measured best on 2 cores of 512 KiB of L2 each and 32 MiB of L3 (LOG.md).
BLOCK_NUMBERS = 1 << 20
SHORTEST_BLOCK = 64
# Up to this many features in all, cutting them into blocks costs more than it saves (LOG.md).
FEW_NUMBERS = 1 << 19

Place = tuple[slice, slice]


def finite(r: Tensor) -> Tensor:
    """A maximum over no keys is -inf; as the lowest finite number it can be subtracted from -inf."""
    return r.clamp(min=torch.finfo(r.dtype).min)


def plain(phi_q: Tensor, phi_k: Tensor, r: Tensor | None, v: Tensor) -> Tensor:
    """The same in a few lines, all features at once: for features that are few, and for `torch.compile`."""
    heads = phi_q.shape[:2]
    # Of a few thousand numbers an operation costs what its call costs: products of three dimensions, and as few as can be.
    phi_q, phi_k, v = phi_q.flatten(0, 1), phi_k.flatten(0, 1), v.flatten(0, 1)
    seen, z = v, phi_k
    few: Tensor | float = TINY * v.shape[1]
    if r is not None:
        r = r.flatten(0, 1)
        kept, scale = r > -torch.inf, torch.exp(r - finite(r.amax(-2, keepdim=True)))
        # Where no key is seen all sums are 0: the quotient needs any denominator but 0.
        few = TINY * kept.sum(-2, keepdim=True).clamp(min=1)
        seen, v, z = v * kept, v * scale, phi_k * scale
    sums = torch.baddbmm(TINY * seen.sum(-2, keepdim=True), phi_q, torch.bmm(phi_k.mT, v))
    return (sums / ((phi_q * z.sum(-2, keepdim=True)).sum(-1, keepdim=True) + few)).unflatten(0, heads)


def streamed(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D), (B,Nk) -> (B,H,Nq,D)."""
    return _Streamed.apply(kernel, key_mask, *Projected.of(q, k, v), *kernel.parameters())


def block_sizes(batch: int, heads: int, tokens: int, features: int) -> tuple[int, int, int]:
    """(images, heads, tokens) of a block: as many images as fit, of one alone as many heads, of one head as many tokens."""
    images = even(batch, BLOCK_NUMBERS // (heads * tokens * features))
    together = even(heads, BLOCK_NUMBERS // (images * tokens * features))
    return images, together, max(min(SHORTEST_BLOCK, tokens), min(tokens, BLOCK_NUMBERS // (images * together * features)))


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, key_mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, product: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        images, heads, tokens = block_sizes(q.shape[0], q.shape[1], max(q.shape[-2], k.shape[-2]), kernel.features)
        places = [(b, h) for b in slices(q.shape[0], images) for h in slices(q.shape[1], heads)]
        lift = kernel.lifter(v.dtype, pulled=False)
        kz = v.new_empty(*k.shape[:2], v.shape[-1] + 1, kernel.features)
        top = v.new_empty(*k.shape[:2], 1, 1)
        # In the layout of the packed projection that q usually is a view of, the layer's output needs no copy.
        out = v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
        weight = v.new_empty(*q.shape[:2], 1, q.shape[2])
        room = v.new_empty(images * heads * tokens * kernel.features)
        for place in places:
            q_GND, k_GND, v_GND, own_kz, own_top, own_weight = (_own(x, place) for x in (q, k, v, kz, top, weight))
            kept = _kept(key_mask, place, v)
            for j in slices(k.shape[-2], tokens):
                phi, r, _ = _lift_keys(lift, k_GND, kept, j, room, kernel.features)
                v_j, scale = _part(v_GND, j), None
                if r is not None:
                    higher = finite(r.amax(-2, keepdim=True))
                    if j.start:
                        higher = torch.maximum(own_top, higher)
                        own_kz.mul_(torch.exp(own_top - higher))
                    own_top.copy_(higher)
                    scale = torch.exp(r - higher)
                torch.baddbmm(own_kz, _with_one(v_j, scale).mT, phi, beta=bool(j.start), out=own_kz)
            seen = v_GND if kept is None else v_GND * kept
            count = float(k.shape[-2]) if kept is None else kept.sum(-2, keepdim=True, dtype=v.dtype).clamp(min=1)
            few, fallback = TINY * count, TINY * seen.sum(-2, keepdim=True)
            for i in slices(q.shape[-2], tokens):
                phi = _lift(lift, _part(q_GND, i), False, room, kernel.features).phi
                # A row times a matrix: the column form of the same product takes a path eight times slower.
                w = torch.bmm(own_kz[:, -1:], phi.mT).add_(few)
                own_weight[..., i] = w
                _put(out, place, i, torch.baddbmm(fallback, phi, own_kz[:, :-1].mT).div_(w.mT))
        ctx.kernel, ctx.key_mask, ctx.places, ctx.tokens, ctx.room_size = kernel, key_mask, places, tokens, room.numel()
        ctx.save_for_backward(q, k, v, product, kz, top, out, weight, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, product, kz, top, out, weight, *parameters = ctx.saved_tensors
        tokens, features = ctx.tokens, ctx.kernel.features
        grad = Gradients(q, k, v, product)
        totals = [torch.zeros_like(p) for p in parameters if p.requires_grad]
        lift = ctx.kernel.lifter(v.dtype, pulled=True)
        rooms = v.new_empty(2, ctx.room_size)

        def through_features(lifted: Lifted, left: Tensor, right: Tensor) -> Tensor:
            grad_x, others = lifted.pull(torch.bmm(left, right, out=_room(rooms[1], left, features)))
            for total, grad in zip(totals, others):
                if grad is not None:
                    total += grad
            return grad_x

        def pull(place: Place) -> None:
            q_GND, k_GND, v_GND, own_kz, own_top, own_weight, own_out, own_grad = (
                _own(x, place) for x in (q, k, v, kz, top, weight, out, grad_out)
            )
            kept = _kept(ctx.key_mask, place, v)
            grad_kz = torch.empty_like(own_kz)
            # The quotient rule: the gradients of s_i and, as one more column, of w_i.
            of_s = own_grad / own_weight.mT
            of_both = torch.cat([of_s, (of_s * own_out).sum(-1, keepdim=True).neg_()], -1)
            for i in slices(q.shape[-2], tokens):
                lifted, of_both_i = _lift(lift, _part(q_GND, i), False, rooms[0], features), _part(of_both, i)
                torch.baddbmm(grad_kz, of_both_i.mT, lifted.phi, beta=bool(i.start), out=grad_kz)
                _put(grad.q, place, i, through_features(lifted, of_both_i, own_kz))
            fallback = TINY * of_s.sum(-2, keepdim=True)
            for j in slices(k.shape[-2], tokens):
                lifted = _lift_keys(lift, k_GND, kept, j, rooms[0], features)
                scale = None if lifted.r is None else torch.exp(lifted.r - own_top)
                of_v = torch.bmm(lifted.phi, grad_kz[:, :-1].mT)
                of_v = of_v if scale is None else of_v.mul_(scale)
                _put(grad.v, place, j, of_v.add_(fallback if kept is None else fallback * kept[:, j]))
                _put(grad.k, place, j, through_features(lifted, _with_one(_part(v_GND, j), scale), grad_kz))

        with torch.autocast(q.device.type, enabled=False):
            for place in ctx.places:
                pull(place)
        found = iter(totals)
        return None, None, *grad.returned(), *(next(found) if p.requires_grad else None for p in parameters)


def _own(x: Tensor, place: Place) -> Tensor:
    """(B,H,...) -> (G,...): a view of what is contiguous, else a copy, as a product of strided tokens takes half as long again."""
    return x[place].flatten(0, 1).contiguous()


def _kept(key_mask: Tensor | None, place: Place, v: Tensor) -> Tensor | None:
    """Which keys of a block a mask keeps (G,N,1), None where all are."""
    return None if key_mask is None else key_mask[place[0], None, :, None].expand(*v[place].shape[:3], 1).flatten(0, 1)


def _part(x: Tensor, tokens: slice) -> Tensor:
    """Some tokens of (G,N,...). A view of all would cost as much as a small operation."""
    return x if tokens.stop - tokens.start == x.shape[1] else x[:, tokens].contiguous()


def _put(whole: Tensor, place: Place, tokens: slice, part: Tensor) -> None:
    """Writes what a block found, (G,N,...), to its place in (B,H,N,...)."""
    own = whole[(*place, tokens)]
    own.copy_(part.view(own.shape))


def _with_one(v: Tensor, scale: Tensor | None) -> Tensor:
    """e_j [v_j, 1], e_j = 1 without a scale."""
    return F.pad(v, (0, 1), value=1.0) if scale is None else torch.cat([scale * v, scale], -1)


def _room(memory: Tensor, x: Tensor, features: int) -> Tensor:
    """The part of the memory for a block that the features of x (G,N,...) take up."""
    groups, tokens = x.shape[:2]
    return memory[: groups * tokens * features].view(groups, tokens, features)


def _lift(lift: Lift, x: Tensor, as_keys: bool, memory: Tensor, features: int) -> Lifted:
    return lift(x, as_keys, _room(memory, x, features))


def _lift_keys(lift: Lift, k: Tensor, kept: Tensor | None, tokens: slice, memory: Tensor, features: int) -> Lifted:
    """The features of keys; a key left out by the mask has r = -inf."""
    lifted = _lift(lift, _part(k, tokens), True, memory, features)
    return lifted if kept is None else lifted._replace(r=or_zero(lifted.r, lifted.phi).masked_fill(~kept[:, tokens], -torch.inf))
