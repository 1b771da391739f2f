"""Causal linear attention by prefix sums over blocks of tokens, on any device.

Shapes: G heads of all images, N tokens, D head width, M features, C tokens of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.stability import SAFE_FLOOR, TINY, guard

# The C of the formulas below: tokens in a block. Per token, the weights within a block cost C (M + D). The sums over
# earlier blocks cost 2 M (D + 1) for any C.
BLOCK_TOKENS = 64


def causal_sums(phi_q: Tensor, u: Tensor, r: Tensor | None, v: Tensor, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """sum_{j<=i} phi(q_i) . phi(k_j) v_j + d sum_{j<=i} v_j (B,H,Nq,D) and sum_{j<=i} phi(q_i) . phi(k_j) + d (i + 1).

    phi(k_j) = u_j exp(r_j). Masked keys (r_j = -inf) are left out of all sums and of the count i + 1.
    O(N (M D + C (M + D))).

    The sums of query i contain exp(r_j - max_{j<=i} r_j): the running sums are rescaled when the maximum grows. With
    one maximum over all keys, a large late key could make all earlier keys underflow to 0.

    `floor` is a lower bound of all features. Above SAFE_FLOOR, d has no effect: leaving it out takes 0.9 of the time
    with relu(m=64) and 197 tokens on a CPU.
    """
    heads = phi_q.shape[:2]
    phi_q, u, v = phi_q.flatten(0, 1), u.flatten(0, 1), v.flatten(0, 1)
    num_queries = phi_q.shape[1]
    num_both = min(num_queries, u.shape[1])
    # v gets a column of ones: the same products then give the weighted sum of v and the sum of weights.
    v_and_one = F.pad(v, (0, 1), value=1.0)
    state = v.new_zeros(v.shape[0], u.shape[-1], v_and_one.shape[-1])
    if r is not None:
        r = r.flatten(0, 1)
        running_max = r.new_full((v.shape[0], 1, 1), torch.finfo(r.dtype).min)
    lengths = _block_lengths(num_both)
    # Split each tensor once: backward then concatenates the gradients of the blocks. The backward of a slice would
    # allocate a gradient of full size for each block.
    q_blocks = phi_q.split([*lengths, num_queries - num_both], 1)
    u_blocks, v_blocks = (x.split([*lengths, x.shape[1] - num_both], 1) for x in (u, v_and_one))
    r_blocks = None if r is None else r.split([*lengths, r.shape[1] - num_both], 1)
    sums = []
    for number in range(len(lengths)):
        q_C, u_C, v_C = q_blocks[number], u_blocks[number], v_blocks[number]
        within = torch.bmm(q_C, u_C.mT)
        before = torch.bmm(q_C, state)
        scaled = v_C
        if r_blocks is not None:
            r_C = r_blocks[number]
            maxima = torch.maximum(r_C.cummax(-2).values, running_max)
            within = within * torch.exp(torch.minimum(r_C.mT - maxima, torch.zeros_like(maxima)))
            before = before * torch.exp(running_max - maxima)
            last = maxima[:, -1:]
            state = state * torch.exp(running_max - last)
            scaled = torch.exp(r_C - last) * v_C
            running_max = last
        sums.append(torch.baddbmm(before, within.tril(), v_C))
        if number + 1 < len(lengths) or num_queries > num_both:
            state = torch.baddbmm(state, u_C.mT, scaled)
    if num_queries > num_both or not lengths:
        # Queries beyond the last key see all keys.
        sums.append(torch.bmm(q_blocks[-1], state))
    values, weight = torch.cat(sums, -2).split([v.shape[-1], 1], -1)
    if r is None and floor > SAFE_FLOOR and lengths:
        return values.unflatten(0, heads), weight.unflatten(0, heads)
    seen = v_and_one if r is None else v_and_one * (r > -torch.inf)
    totals = seen[:, :num_both].cumsum(-2)
    totals = torch.cat([totals, totals[:, -1:].expand(-1, num_queries - num_both, -1)], -2)
    values, weight = values + TINY * totals[..., :-1], weight + guard(totals[..., -1:])
    return values.unflatten(0, heads), weight.unflatten(0, heads)


def _block_lengths(tokens: int) -> list[int]:
    """The lengths of equal blocks of at most BLOCK_TOKENS tokens; the last block may be shorter."""
    count = -(-tokens // BLOCK_TOKENS)
    length = -(-tokens // max(count, 1))
    return [min(length, tokens - start) for start in range(0, tokens, max(length, 1))]
