"""Bidirectional linear attention in blocks that stay in cache, with a backward that recomputes features.

    forward     kz = sum_j e_j [v_j, 1] phi(k_j)^T,  e_j = exp(r_j - max r)
                [s_i, w_i] = kz phi(q_i),  out_i = (s_i + d sum v) / (w_i + d n),  n keys seen
    backward    the gradients of these products by hand, those of phi by the kernel's own or by autograd on the block's features

Nothing of size N x M outlives a block: kept for the backward are q, k, [v, 1], out, w, e and, (D+1) x M for each head, kz.
What is of size N x D is made once for all blocks, forward and backward; a block then works on views. In half precision v and out are
without what they have in common (`_take_middle`).
Shapes: B batch, H heads, N tokens, D head width, E = D + 1, M features, G heads of images in a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from favorit.attention.blocks import even, slices
from favorit.attention.features import Totals, heads_in_blocks, lift_into, room_in, some_tokens
from favorit.attention.kernel import Kernel, Lifted, only
from favorit.attention.precision import WIDE, widened

# Added to the mean weight of a row: a row whose features all vanish becomes the mean of v instead of 0/0.
TINY = 1e-30
# Features of one block, in numbers: 4 MiB of fp32, measured best on 2 cores of 512 KiB of L2 each and 32 MiB of L3 (LOG.md); of bf16,
# whose products are faster beside the calls that make them, four times as many.
BLOCK_NUMBERS = 1 << 20
SHORTEST_BLOCK = 64
# With no feature below this no row can vanish, and d beside its square is below rounding even in fp64.
SAFE = 1e-6
# In half precision, one of so many queries tells what outputs have in common. No divisor of the usual sides of images.
EVERY = 5
# Up to this many features in all, cutting them into blocks costs more than it saves (LOG.md).
FEW_NUMBERS = 1 << 19


def finite(r: Tensor) -> Tensor:
    """A maximum over no keys is -inf; as the lowest finite number it can be subtracted from -inf."""
    return r.clamp(min=torch.finfo(r.dtype).min)


def least_weight(count: Tensor) -> Tensor:
    """d n for n keys seen. Where none is, all sums are 0 and any denominator but 0 will do: with 1 gradients stay small too."""
    return torch.where(count > 0, TINY * count, 1.0)


def plain(phi_q: Tensor, phi_k: Tensor, r: Tensor | None, v: Tensor, least: float = 0.0) -> Tensor:
    """The same in a few lines, all features at once: for features that are few, and for `torch.compile`. No feature is below `least`."""
    batch, heads, queries, _ = phi_q.shape
    # Of a few thousand numbers an operation costs what its call costs: products of three dimensions, and as few as can be.
    phi_q, phi_k, v = phi_q.flatten(0, 1), phi_k.flatten(0, 1), v.flatten(0, 1)
    if r is None and least > SAFE:
        sums, weight = torch.bmm(phi_q, torch.bmm(phi_k.mT, v)), _row_sums(phi_q, phi_k)
        # In place where nobody goes back through it: autograd would keep a copy of the sums.
        return (sums / weight if sums.requires_grad else sums.div_(weight)).view(batch, heads, queries, v.shape[-1])
    seen, z = v, phi_k
    few: Tensor | float = TINY * v.shape[1]
    if r is not None:
        r = r.flatten(0, 1)
        kept, scale = r > -torch.inf, torch.exp(r - finite(r.amax(-2, keepdim=True)))
        few = least_weight(kept.sum(-2, keepdim=True))
        seen, v, z = v * kept, v * scale, phi_k * scale
    sums = torch.baddbmm(TINY * seen.sum(-2, keepdim=True), phi_q, torch.bmm(phi_k.mT, v))
    return (sums / (_row_sums(phi_q, z) + few)).view(batch, heads, queries, v.shape[-1])


def _row_sums(phi_q: Tensor, phi_k: Tensor) -> Tensor:
    """The sum of weights of each query (G,Nq,1)."""
    return (phi_q * phi_k.sum(-2, keepdim=True)).sum(-1, keepdim=True)


def streamed(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D), (B,Nk) -> (B,H,Nq,D)."""
    return _Streamed.apply(kernel, key_mask, q, k, v, *kernel.parameters())


def block_sizes(groups: int, tokens: int, features: int, dtype: torch.dtype) -> tuple[int, int]:
    """(heads of images, tokens) of a block of that type: as many heads of `groups` as fit, of a single one as many tokens."""
    numbers = BLOCK_NUMBERS if dtype in WIDE else 4 * BLOCK_NUMBERS
    together = even(groups, numbers // (tokens * features))
    return together, max(min(SHORTEST_BLOCK, tokens), min(tokens, numbers // (together * features)))


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, key_mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        groups, tokens = block_sizes(q.shape[:2].numel(), max(q.shape[-2], k.shape[-2]), kernel.features, v.dtype)
        lift, room = kernel.lifter(v.dtype, pulled=False), v.new_empty(groups * tokens * kernel.features)
        kz, out = v.new_empty(*k.shape[:2], v.shape[-1] + 1, kernel.features), v.new_empty(*q.shape[:-1], v.shape[-1])
        weight, top, exponents = (v.new_empty(*k.shape[:2], 1, length) for length in (q.shape[2], 1, k.shape[2]))
        wide = widened(v.dtype)
        middle = None if v.dtype == wide else v.new_empty(*v.shape[:2], 1, v.shape[-1], dtype=wide)
        q, k, v_and_one, kept = q.contiguous(), k.contiguous(), _with_one(v), _kept(key_mask, k)
        for q_GND, k_GND, v_GNE, kept_GN, middle_GD, kz_GEM, top_G, exponents_GN, out_GND, weight_GN in heads_in_blocks(
            groups, q, k, v_and_one, kept, middle, kz, top, exponents, out, weight
        ):
            if middle_GD is not None:
                asked = lift_into(room, lift, q_GND[:, ::EVERY].contiguous(), False, kernel.features).phi.mean(-2, keepdim=True)
            for j in slices(k.shape[-2], tokens):
                phi, r, _, floor = lift_into(room, lift, some_tokens(k_GND, j), True, kernel.features)
                r = r if kept_GN is None else only(kept_GN[:, j], r, phi)  # a key left out by the mask has r = -inf
                if middle_GD is not None:
                    middle_GD.copy_(_take_middle(v_GNE, phi, asked, floor))
                scaled = some_tokens(v_GNE, j)
                if r is not None:
                    higher = finite(r.amax(-2, keepdim=True))
                    if j.start:
                        higher = torch.maximum(top_G, higher)
                        kz_GEM.mul_(torch.exp(top_G - higher))
                    top_G.copy_(higher)
                    exponents_GN[..., j] = r.mT
                    scaled = scaled * torch.exp(r - higher)
                torch.baddbmm(kz_GEM, scaled.mT, phi, beta=bool(j.start), out=kz_GEM)
                if floor and r is not None:
                    kz_GEM.add_(floor * scaled.sum(-2, keepdim=True).mT)
            seen = (v_GNE if kept_GN is None else v_GNE * kept_GN).sum(-2, keepdim=True)
            # What every query gets: d times the sum of v and the number of keys.
            all_get = torch.cat([TINY * seen[..., :-1], least_weight(seen[..., -1:])], -1)
            if floor:
                if r is None:
                    kz_GEM.add_(floor * seen.mT)
                all_get.add_(floor * kz_GEM.sum(-1).unsqueeze(-2))
            for i in slices(q.shape[-2], tokens):
                phi = lift_into(room, lift, some_tokens(q_GND, i), False, kernel.features).phi
                # A row times a matrix: the column form of the same product takes a path eight times slower.
                w = torch.baddbmm(all_get[..., -1:], kz_GEM[:, -1:], phi.mT, out=weight_GN[..., i])
                s = torch.baddbmm(all_get[..., :-1], phi, kz_GEM[:, :-1].mT, out=out_GND[:, i])
                s.div_(w.mT.to(wide))  # of rows in bf16 by numbers in bf16, torch takes three times as long
        ctx.kernel, ctx.key_mask, ctx.sizes = kernel, key_mask, (groups, tokens)
        # Features are made again going back. The buffers are kept so that torch refuses to when they were redrawn meanwhile.
        scale = None if r is None else torch.exp(exponents - top).mT
        ctx.save_for_backward(q, k, v_and_one, scale, kz, out, weight, *parameters, *kernel.buffers())
        return out if middle is None else (out + middle).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v_and_one, scale, kz, out, weight, *others = ctx.saved_tensors
        parameters = others[: len(list(ctx.kernel.parameters()))]
        (groups, tokens), features = ctx.sizes, ctx.kernel.features
        grads = q.new_empty(q.shape), k.new_empty(k.shape), q.new_empty(*k.shape[:-1], out.shape[-1])
        totals = Totals(parameters)
        lift, rooms = ctx.kernel.lifter(out.dtype, pulled=True), out.new_empty(2, groups * tokens * features)
        # The quotient rule: the gradients of s_i and, as one more column, of w_i.
        grad_out = grad_out.to(widened(out.dtype))
        quotient = torch.cat([grad_out, (grad_out * out).sum(-1, keepdim=True).neg_()], -1).div_(weight.mT.to(grad_out.dtype))
        of_both, of_all, nothing = quotient.to(out.dtype), quotient.sum(-2, keepdim=True), out.new_zeros(1, 1, 1)

        def through_features(lifted: Lifted, left: Tensor, right: Tensor, of_x: Tensor) -> None:
            of_phi = torch.bmm(left, right, out=room_in(rooms[1], left, features))
            totals.add(lifted.pull(of_phi, of_x))

        with torch.autocast(q.device.type, enabled=False):
            for q_GND, k_GND, v_GNE, kept_GN, scale_GN, of_GNE, of_GE, kz_GEM, grad_q, grad_k, grad_v in heads_in_blocks(
                groups, q, k, v_and_one, _kept(ctx.key_mask, k), scale, of_both, of_all, kz, *grads
            ):
                grad_kz = torch.empty_like(kz_GEM)
                for i in slices(q.shape[-2], tokens):
                    lifted, of_i = lift_into(rooms[0], lift, some_tokens(q_GND, i), False, features), some_tokens(of_GNE, i)
                    torch.baddbmm(grad_kz, of_i.mT, lifted.phi, beta=bool(i.start), out=grad_kz)
                    through_features(lifted, of_i, kz_GEM, grad_q[:, i])
                of_rest, of_floor = TINY * of_GE[..., :-1], nothing
                if lifted.floor:
                    grad_kz.add_((lifted.floor * of_GE.mT).to(grad_kz.dtype))
                    of_floor = lifted.floor * grad_kz[:, :-1].sum(-1).unsqueeze(-2)
                of_all_v = of_floor if scale_GN is not None else (of_floor + of_rest).to(of_floor.dtype)
                for j in slices(k.shape[-2], tokens):
                    lifted, scaled = lift_into(rooms[0], lift, some_tokens(k_GND, j), True, features), some_tokens(v_GNE, j)
                    of_v = torch.baddbmm(of_all_v, lifted.phi, grad_kz[:, :-1].mT, out=grad_v[:, j])
                    if scale_GN is not None:
                        of_v.mul_(scale_GN[:, j]).add_(of_rest if kept_GN is None else of_rest * kept_GN[:, j])
                        scaled = scaled * scale_GN[:, j]
                    through_features(lifted, scaled, grad_kz, grad_k[:, j])
        return None, None, *grads, *totals.of_all()


def _with_one(v: Tensor) -> Tensor:
    """[v_j, 1]: the normaliser as one more column."""
    both = v.new_empty(*v.shape[:-1], v.shape[-1] + 1)
    both[..., :-1], both[..., -1] = v, 1.0
    return both


def _take_middle(v_and_one: Tensor, phi: Tensor, asked: Tensor, floor: float) -> Tensor:
    """Takes the mean of v, in the weights that the mean query `asked` (G,1,M) gives to keys, off [v, 1] (G,N,E), and returns what to add to
    outputs (G,1,D).

    Weights sum to one, so that nothing else changes and it has no gradient. What outputs have in common would, rounded to bf16, drown what
    tells the gradients of weights apart; any other middle, far from values that count, would round those. With it goes the mean of what
    rounding changes: it need not vanish, as values of bf16 lie on a grid, and a difference may be rounded the same way for all.
    """
    asked = asked + floor
    share = torch.bmm(asked, phi.mT).float().add_(floor * asked.sum(-1, keepdim=True)).add_(TINY)
    share.div_(share.sum(-1, keepdim=True))
    v = v_and_one[..., :-1]
    wide = v.float()
    middle = torch.bmm(share, wide)
    v.copy_(wide.sub_(middle))
    return middle.baddbmm_(share, wide.sub_(v))


def _kept(key_mask: Tensor | None, k: Tensor) -> Tensor | None:
    """Which keys a mask keeps (B,H,N,1), None where all are."""
    return None if key_mask is None else key_mask[:, None, :, None].expand(*k.shape[:-1], 1)
