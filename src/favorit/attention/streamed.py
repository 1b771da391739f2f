"""Bidirectional linear attention in blocks that stay in cache, with a backward that recomputes features.

    forward     kz = sum_j e_j [v_j, 1] phi(k_j)^T,  e_j = exp(r_j - max r)
                [s_i, w_i] = kz phi(q_i),  out_i = (s_i + d sum v) / (w_i + d n),  n keys seen
    backward    the gradients of these products by hand, those of phi by the kernel's own or by autograd on the block's
    features

Nothing of size N x M outlives a block: kept for the backward are q, k, e [v, 1], out, w and, (D+1) x M for each head,
kz. What is of size N x D is made once for all blocks, forward and backward; a block then works on views. In half
precision v and out are without what they have in common (`_take_middle`).
Shapes: B batch, H heads, N tokens, D head width, E = D + 1, M features, G heads of images in a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from favorit.attention.blocks import even, slices
from favorit.attention.features import Totals, heads_in_blocks, lift_into, room_in, some_tokens
from favorit.attention.kernel import Kernel, Lifted, Lifter, only, with_one
from favorit.attention.precision import WIDE, widened

# Added to the mean weight of a row: a row whose features all vanish becomes the mean of v instead of 0/0.
TINY = 1e-30
# Features of one block, in numbers: 4 MiB of fp32, measured best on 2 cores of 512 KiB of L2 each and 32 MiB of L3
# (LOG.md); of bf16, whose products are faster beside the calls that make them, four times as many.
BLOCK_NUMBERS = 1 << 20
SHORTEST_BLOCK = 64
# With no feature below this no row can vanish, and d beside its square is below rounding even in fp64.
SAFE = 1e-6
# A way to features that takes no care of their range (`Kernel.lifters`) is taken where all e_j, z_m = sum_j e_j
# phi_m(k_j) and w_i = sum_m phi_m(q_i) z_m are within these. Then nothing overflows, going back either, as phi_m(q_i)
# <= w_i / z_m and phi_m(k_j) <= z_m / e_j; and features that vanish, below 1e-37, would have been less than 1e-9 of a
# w_i.
LEAST, MOST = 1e-10, 1e18
# In half precision, one of so many queries tells what outputs have in common. No divisor of the usual sides of images.
EVERY = 5
# Up to this many features in all, cutting them into blocks costs more than it saves (LOG.md).
FEW_NUMBERS = 1 << 19


def finite(r: Tensor) -> Tensor:
    """A maximum over no keys is -inf; as the lowest finite number it can be subtracted from -inf."""
    return r.clamp(min=torch.finfo(r.dtype).min)


def least_weight(count: Tensor) -> Tensor:
    """d n for n keys seen. Where none is, all sums are 0 and any denominator but 0 will do: with 1 gradients stay small
    too.
    """
    return torch.where(count > 0, TINY * count, 1.0)


def plain(phi_q: Tensor, phi_k: Tensor, r: Tensor | None, v: Tensor, least: float = 0.0) -> Tensor:
    """The same in a few lines, all features at once: for features that are few, and for `torch.compile`. No feature is
    below `least`.
    """
    batch, heads, queries, _ = phi_q.shape
    # Of a few thousand numbers an operation costs what its call costs: products of three dimensions, and as few as can
    # be.
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
    """(heads of images, tokens) of a block of that type: as many heads of `groups` as fit, of a single one as many
    tokens.
    """
    numbers = BLOCK_NUMBERS if dtype in WIDE else 4 * BLOCK_NUMBERS
    together = even(groups, numbers // (tokens * features))
    return together, max(min(SHORTEST_BLOCK, tokens), min(tokens, numbers // (together * features)))


class _Sums(NamedTuple):
    """What a forward finds, before d is added and s divided by w."""

    q: Tensor  # (B,H,Nq,...), ready to be lifted
    k: Tensor  # (B,H,Nk,...)
    values: Tensor  # (B,H,Nk,E): e [v, 1]
    kz: Tensor  # (B,H,E,M)
    s: Tensor  # (B,H,Nq,D)
    weight: Tensor  # (B,H,1,Nq)
    middle: Tensor | None  # (B,H,1,D): what outputs have in common, in half precision
    scaled: bool  # whether keys have an e


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, key_mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor
    ) -> Tensor:
        kept, wide = _kept(key_mask, k), widened(v.dtype)
        sizes = block_sizes(q.shape[:2].numel(), max(q.shape[-2], k.shape[-2]), kernel.features, v.dtype)
        ways = kernel.lifters(v, pulled=False)
        for way in range(
            -len(ways) if kept is None else -1, 0
        ):  # keys left out have e = 0, which no fast way is made for
            found = _sums(ways[way], kernel.features, sizes, q, k, v, kept, checked=way < -1)
            if found is not None:
                break
        assert found is not None
        s, weight, middle = found.s, found.weight, found.middle
        # d is below rounding beside weights that are not tiny; to look at them, a processor that runs ahead would have
        # to be waited for.
        guarded = not (v.is_cpu and weight.amin() >= TINY * k.shape[-2] / torch.finfo(wide).eps)
        if guarded:
            seen = v if middle is None else found.values[..., :-1]
            count = v.new_full((1, 1), k.shape[-2]) if kept is None else kept.sum(-2, keepdim=True, dtype=wide)
            s.add_(TINY * (seen if kept is None else seen * kept).sum(-2, keepdim=True))
            weight.add_(least_weight(count).to(weight.dtype))
        out = s.div_(weight.mT.to(wide))  # of rows in bf16 by numbers in bf16, torch takes three times as long
        ctx.kernel, ctx.key_mask, ctx.sizes, ctx.way, ctx.scaled, ctx.guarded = (
            kernel,
            key_mask,
            sizes,
            way,
            found.scaled,
            guarded,
        )
        ctx.width = q.shape[-1]
        # Features are made again going back. The buffers are kept so that torch refuses to when they were redrawn
        # meanwhile.
        ctx.save_for_backward(found.q, found.k, found.values, found.kz, out, weight, *parameters, *kernel.buffers())
        return out if middle is None else (out + middle).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, values, kz, out, weight, *others = ctx.saved_tensors
        parameters = others[: len(list(ctx.kernel.parameters()))]
        (groups, tokens), features = ctx.sizes, ctx.kernel.features
        grads = tuple(
            x.new_empty(*x.shape[:-1], width) for x, width in ((q, ctx.width), (k, ctx.width), (values, out.shape[-1]))
        )
        totals, lifter = Totals(parameters), ctx.kernel.lifters(out, pulled=True)[ctx.way]
        room, second_room = out.new_empty(2, groups * tokens, features)
        kz_room, quotient = (
            kz.new_empty(groups, *kz.shape[2:]),
            _quotient_rule(grad_out.to(widened(out.dtype)), out, weight),
        )

        def through_features(lifted: Lifted, left: Tensor, right: Tensor, of_x: Tensor) -> None:
            of_phi = torch.bmm(left, right, out=room_in(second_room, left))
            totals.add(lifted.pull(of_phi, of_x))

        with torch.autocast(q.device.type, enabled=False):
            for q_GND, k_GND, v_GNE, of_GNE, kz_GEM, grad_q, grad_k, grad_v in heads_in_blocks(
                groups, q, k, values, quotient.to(out.dtype), kz, *grads
            ):
                grad_kz = kz_room[: len(kz_GEM)]
                for i in slices(q.shape[-2], tokens):
                    lifted, of_i = lift_into(room, lifter, some_tokens(q_GND, i), False), some_tokens(of_GNE, i)
                    torch.baddbmm(grad_kz, of_i.mT, lifted.phi, beta=bool(i.start), out=grad_kz)
                    through_features(lifted, of_i, kz_GEM, some_tokens(grad_q, i))
                for j in slices(k.shape[-2], tokens):
                    lifted, v_j = lift_into(room, lifter, some_tokens(k_GND, j), True), some_tokens(v_GNE, j)
                    of_v = torch.bmm(lifted.phi, grad_kz[:, :-1].mT, out=some_tokens(grad_v, j))
                    if ctx.scaled:
                        of_v.mul_(v_j[..., -1:])
                    through_features(lifted, v_j, grad_kz, some_tokens(grad_k, j))
        if ctx.guarded:
            kept, of_seen = _kept(ctx.key_mask, k), TINY * quotient[..., :-1].sum(-2, keepdim=True)
            grads[2].add_(of_seen if kept is None else of_seen * kept)
        return None, None, *grads, *totals.of_all()


def _sums(
    lifter: Lifter,
    features: int,
    sizes: tuple[int, int],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: Tensor | None,
    checked: bool,
) -> _Sums | None:
    """By that way to features; None where numbers leave the range it needs (`checked`)."""
    (groups, tokens), wide = sizes, widened(v.dtype)
    r = None if lifter.r is None else lifter.r(k)
    r = r if kept is None else only(kept, r, k)  # a key left out by the mask has r = -inf
    values = with_one(v) if r is None else _scaled_with_one(v, (r - finite(r.amax(-2, keepdim=True))).exp_())
    if checked and not _in_range(values[..., -1]):
        return None
    q_ready, k_ready = lifter.prepared(q), lifter.prepared(k)
    kz, s = v.new_empty(*k.shape[:2], v.shape[-1] + 1, features), v.new_empty(*q.shape[:-1], v.shape[-1])
    room, weight = v.new_empty(groups * tokens, features), v.new_empty(*q.shape[:2], 1, q.shape[2])
    middle = None if v.dtype == wide else v.new_empty(*v.shape[:2], 1, v.shape[-1], dtype=wide)
    for q_GND, k_GND, v_GNE, kept_GN, middle_GD, kz_GEM, s_GND, weight_GN in heads_in_blocks(
        groups, q_ready, k_ready, values, kept, middle, kz, s, weight
    ):
        if middle_GD is not None:
            asked = lift_into(room, lifter, q_GND[:, ::EVERY].contiguous(), False).phi.mean(-2, keepdim=True)
        tops: list[Tensor] = []
        for j in slices(k.shape[-2], tokens):
            phi, r_found, _ = lift_into(room, lifter, some_tokens(k_GND, j), True)
            if middle_GD is not None:
                middle_GD.copy_(_take_middle(v_GNE, phi, asked))
            v_j = some_tokens(v_GNE, j)
            if r_found is not None:
                r_found = r_found if kept_GN is None else only(kept_GN[:, j], r_found, phi)
                top = finite(r_found.amax(-2, keepdim=True))
                if tops:
                    top = torch.maximum(tops[-1], top)
                    kz_GEM.mul_(torch.exp(tops[-1] - top))
                tops.append(top)
                v_j.mul_((r_found - top).exp_())
            torch.baddbmm(kz_GEM, v_j.mT, phi, beta=bool(j.start), out=kz_GEM)
        for j, top in zip(slices(k.shape[-2], tokens), tops[:-1]):
            some_tokens(v_GNE, j).mul_(torch.exp(top - tops[-1]))
        for i in slices(q.shape[-2], tokens):
            phi = lift_into(room, lifter, some_tokens(q_GND, i), False).phi
            # A row times a matrix: the column form of the same product takes a path eight times slower.
            torch.bmm(kz_GEM[:, -1:], phi.mT, out=weight_GN[..., i])
            torch.bmm(phi, kz_GEM[:, :-1].mT, out=some_tokens(s_GND, i))
        if checked and not _in_range(kz_GEM[:, -1], weight_GN):
            return None
    return _Sums(q_ready, k_ready, values, kz, s, weight, middle, scaled=r is not None or r_found is not None)


def _in_range(*positive: Tensor) -> bool:
    """Whether all are from LEAST to MOST; no if one is NaN."""
    for x in positive:
        least, most = torch.aminmax(x)
        if not (least.item() >= LEAST and most.item() <= MOST):
            return False
    return True


def _quotient_rule(grad_out: Tensor, out: Tensor, weight: Tensor) -> Tensor:
    """The gradients of s_i and, as one more column, of w_i: g / w and -g . out / w."""
    both = grad_out.new_empty(*out.shape[:-1], out.shape[-1] + 1)
    of_s = torch.div(grad_out, weight.mT.to(grad_out.dtype), out=both[..., :-1])
    torch.sum(of_s * out, -1, keepdim=True, out=both[..., -1:]).neg_()
    return both


def _scaled_with_one(v: Tensor, e: Tensor) -> Tensor:
    """e_j [v_j, 1]."""
    both = v.new_empty(*v.shape[:-1], v.shape[-1] + 1)
    torch.mul(v, e, out=both[..., :-1])
    both[..., -1:] = e
    return both


def _take_middle(v_and_one: Tensor, phi: Tensor, asked: Tensor) -> Tensor:
    """Takes the mean of v, in the weights that the mean query `asked` (G,1,M) gives to keys, off [v, 1] (G,N,E), and
    returns what to add to outputs (G,1,D).

    Weights sum to one, so that nothing else changes and it has no gradient. What outputs have in common would, rounded
    to bf16, drown what tells the gradients of weights apart; any other middle, far from values that count, would round
    those. With it goes the mean of what rounding changes: it need not vanish, as values of bf16 lie on a grid, and a
    difference may be rounded the same way for all.
    """
    share = torch.bmm(asked, phi.mT).float().add_(TINY)
    share.div_(share.sum(-1, keepdim=True))
    v = v_and_one[..., :-1]
    wide = v.float()
    middle = torch.bmm(share, wide)
    v.copy_(wide.sub_(middle))
    return middle.baddbmm_(share, wide.sub_(v))


def _kept(key_mask: Tensor | None, k: Tensor) -> Tensor | None:
    """Which keys a mask keeps (B,H,N,1), None where all are."""
    return None if key_mask is None else key_mask[:, None, :, None].expand(*k.shape[:-1], 1)
