"""Bidirectional linear attention in blocks that stay in cache, with a backward that recomputes features.

    forward     kz = sum_j e_j [v_j, 1] phi(k_j)^T,  e_j = exp(r_j - max r)
                [s_i, w_i] = kz phi(q_i),  out_i = (s_i + d sum v) / (w_i + d n),  n keys seen
    backward    the gradients of these products by hand, those of phi by autograd on the block's own features

Nothing of size N x M outlives a block: kept for the backward are q, k, v, out, w and, (D+1) x M for each head, kz.
Shapes: B batch, H heads, N tokens, D head width, M features, G images x heads of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from favorit.attention.blocks import over_blocks, slices

if TYPE_CHECKING:
    from favorit.attention.kernel import Kernel, Lifted

# Added to the mean weight of a row: a row whose features all vanish becomes the mean of v instead of 0/0.
TINY = 1e-30
# Features of one block, in numbers: 2 MiB of fp32, measured best on a CPU with 512 KiB of L2 for each core (LOG.md).
BLOCK_NUMBERS = 1 << 19
SHORTEST_BLOCK = 64
# Up to this many features in all, cutting them into blocks costs more than it saves (LOG.md).
FEW_NUMBERS = 1 << 20

Place = tuple[slice, slice]


def finite(r: Tensor) -> Tensor:
    """A maximum over no keys is -inf; as the lowest finite number it can be subtracted from -inf."""
    return r.clamp(min=torch.finfo(r.dtype).min)


def plain(phi_q: Tensor, phi_k: Tensor, r: Tensor | None, v: Tensor) -> Tensor:
    """The same in a few lines, all features at once: for features that are few, and for `torch.compile`."""
    v_and_one = F.pad(v, (0, 1), value=1.0)
    seen = v_and_one
    if r is not None:
        seen = v_and_one * (r > -torch.inf)
        v_and_one = v_and_one * torch.exp(r - finite(r.amax(-2, keepdim=True)))
    sums = phi_q @ (v_and_one.mT @ phi_k).mT + TINY * seen.sum(-2, keepdim=True)
    # Where no key is seen all sums are 0: the quotient needs any denominator but 0.
    return sums[..., :-1] / (sums[..., -1:] if r is None else sums[..., -1:].clamp(min=TINY))


def streamed(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D), (B,Nk) -> (B,H,Nq,D)."""
    return _Streamed.apply(kernel, key_mask, q, k, v, *kernel.parameters())


def block_sizes(batch: int, heads: int, tokens: int, features: int) -> tuple[int, int, int]:
    """(images, heads, tokens) of a block: as many images as fit, of one alone as many heads, of one head as many tokens.

    Where it can be, there is a block for every thread.
    """
    threads = torch.get_num_threads()
    images = max(1, min(-(-batch // threads), BLOCK_NUMBERS // (heads * tokens * features)))
    together = heads if batch >= threads else -(-heads // threads)
    together = max(1, min(together, BLOCK_NUMBERS // (images * tokens * features)))
    return images, together, max(min(SHORTEST_BLOCK, tokens), min(tokens, BLOCK_NUMBERS // (images * together * features)))


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, key_mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        images, heads, tokens = block_sizes(q.shape[0], q.shape[1], max(q.shape[-2], k.shape[-2]), kernel.features)
        places = [(b, h) for b in slices(q.shape[0], images) for h in slices(q.shape[1], heads)]
        room_size = images * heads * tokens * kernel.features
        kz = v.new_empty(*k.shape[:2], v.shape[-1] + 1, kernel.features)
        top = v.new_empty(*k.shape[:2], 1, 1)
        # In the layout of the packed projection that q usually is a view of, the layer's output needs no copy.
        out = v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
        weight = v.new_empty(*q.shape[:3], 1)

        def attend(place: Place, room: Tensor) -> None:
            q_GND, k_GND, v_GND, kept = _block(place, q, k, v, key_mask)
            own_top = own_kz = v.new_zeros(())
            for j in slices(k.shape[-2], tokens):
                phi, r = _lift_keys(kernel, k_GND[:, j], kept, j, room)[:2]
                higher = finite(r.amax(-2, keepdim=True))
                higher = higher if j.start == 0 else torch.maximum(own_top, higher)
                added = torch.bmm(_with_one(v_GND[:, j], torch.exp(r - higher)).mT, phi)
                own_kz = added if j.start == 0 else torch.exp(own_top - higher) * own_kz + added
                own_top = higher
            seen = v_GND if kept is None else v_GND * kept
            count = float(k.shape[-2]) if kept is None else kept.sum(-2, keepdim=True, dtype=v.dtype).clamp(min=1)
            few, fallback = TINY * count, TINY * seen.sum(-2, keepdim=True)
            for i in slices(q.shape[-2], tokens):
                phi = _lift(kernel, q_GND[:, i], False, room).phi
                # A row times a matrix: the column form of the same product takes a path eight times slower.
                w = torch.bmm(own_kz[:, -1:], phi.mT).mT + few
                _put(out, place, i, torch.bmm(phi, own_kz[:, :-1].mT).add_(fallback).div_(w))
                _put(weight, place, i, w)
            kz[place], top[place] = own_kz.view_as(kz[place]), own_top.view_as(top[place])

        over_blocks(attend, places, v.device, lambda: v.new_empty(room_size))
        ctx.kernel, ctx.key_mask, ctx.places, ctx.tokens, ctx.room_size = kernel, key_mask, places, tokens, room_size
        ctx.save_for_backward(q, k, v, kz, top, out, weight, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, kz, top, out, weight, *parameters = ctx.saved_tensors
        kernel, tokens = ctx.kernel, ctx.tokens
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        trained = [p for p in parameters if p.requires_grad]

        def pull(place: Place, rooms: Tensor) -> list[Tensor]:
            q_GND, k_GND, v_GND, kept = _block(place, q, k, v, ctx.key_mask)
            own_kz, own_top, own_weight, own_out, own_grad = (x[place].flatten(0, 1) for x in (kz, top, weight, out, grad_out))
            grad_kz, totals = torch.zeros_like(own_kz), [torch.zeros_like(p) for p in trained]

            def through_features(lifted: Lifted, left: Tensor, right: Tensor) -> Tensor:
                grad_phi = torch.bmm(left, right, out=rooms[1, : lifted.phi.numel()].view_as(lifted.phi))
                grad_x, others = lifted.pull(grad_phi)
                for total, grad in zip(totals, others):
                    if grad is not None:
                        total += grad
                return grad_x

            # The quotient rule: the gradients of s_i and, as one more column, of w_i.
            of_s = own_grad / own_weight
            of_both = torch.cat([of_s, (of_s * own_out).sum(-1, keepdim=True).neg_()], -1)
            for i in slices(q.shape[-2], tokens):
                with torch.enable_grad():
                    lifted = _lift(kernel, q_GND[:, i], False, rooms[0])
                grad_kz.baddbmm_(of_both[:, i].mT, lifted.phi)
                _put(grad_q, place, i, through_features(lifted, of_both[:, i], own_kz))
            fallback = TINY * of_s.sum(-2, keepdim=True)
            for j in slices(k.shape[-2], tokens):
                with torch.enable_grad():
                    lifted = _lift_keys(kernel, k_GND[:, j], kept, j, rooms[0])
                scale = torch.exp(lifted.r - own_top)
                of_v = torch.bmm(lifted.phi, grad_kz[:, :-1].mT).mul_(scale)
                _put(grad_v, place, j, of_v.add_(fallback if kept is None else fallback * kept[:, j]))
                _put(grad_k, place, j, through_features(lifted, _with_one(v_GND[:, j], scale), grad_kz))
            return totals

        with torch.autocast(q.device.type, enabled=False):
            found = over_blocks(pull, ctx.places, v.device, lambda: v.new_empty(2, ctx.room_size))
        totals = iter([torch.stack(parts).sum(0) for parts in zip(*found, strict=True)])
        return None, None, grad_q, grad_k, grad_v, *(next(totals) if p.requires_grad else None for p in parameters)


def _block(place: Place, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The queries, keys and values of a block as (G,N,D), G = images x heads, and which keys are kept (G,N,1), None where all are.

    Contiguous copies: a projection of a strided view takes half as long again.
    """
    kept = None if key_mask is None else key_mask[place[0], None, :, None].expand(*v[place].shape[:3], 1).flatten(0, 1)
    q_GND, k_GND, v_GND = (x.detach()[place].flatten(0, 1) for x in (q, k, v))
    return q_GND, k_GND, v_GND, kept


def _put(whole: Tensor, place: Place, tokens: slice, part: Tensor) -> None:
    """Writes what a block found, (G,N,...), to its place in (B,H,N,...)."""
    own = whole[place][..., tokens, :]
    own.copy_(part.view_as(own))


def _with_one(v: Tensor, scale: Tensor) -> Tensor:
    """e_j [v_j, 1]."""
    return torch.cat([scale * v, scale], -1)


def _lift(kernel: Kernel, x: Tensor, as_keys: bool, room: Tensor) -> Lifted:
    return kernel.lift(x, as_keys, room[: x[..., 0].numel() * kernel.features])


def _lift_keys(kernel: Kernel, k: Tensor, kept: Tensor | None, tokens: slice, room: Tensor) -> Lifted:
    """The features of keys; a key left out by the mask has r = -inf."""
    lifted = _lift(kernel, k, True, room)
    return lifted if kept is None else lifted._replace(r=lifted.r.masked_fill(~kept[:, tokens], -torch.inf))
