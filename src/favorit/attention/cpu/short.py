"""Linear attention with all features at once, for short sequences: the direct form in fewer and cheaper calls.

With a few thousand elements, call overhead dominates. This module uses 3D products and a sum instead of a product with
one column, and leaves out the guard if features have a floor. If a row sum of an `ExponentialKernel` is too small, it
computes attention from the exponents instead. The first two changes, and no context manager without
autocast, reduced the time of relu at 128 tokens, batch 1, from 205 to 180 us (Zen 3; LOG.md, 2026-11-16). Used up to
`Limits.few_feature_elements` elements; above, blocks are faster.
Shapes: B batch, H heads, N tokens, D head width, M features, G = B H.
"""

from __future__ import annotations

import torch
from torch import Tensor

from favorit.attention.cpu.block_features import cpu_kernel
from favorit.attention.exponential import exact_attention
from favorit.attention.kernels.contract import ExponentialKernel, Kernel
from favorit.attention.prefix_sums import causal_sums
from favorit.attention.stability import SAFE_FLOOR, TINY, finite, guard, has_tiny_sum, mask_keys


def attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, kernel: Kernel, is_causal: bool) -> Tensor:
    """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D), (B,Nk) -> (B,H,Nq,D), in fp32 or fp64."""
    on_cpu = cpu_kernel(kernel)
    phi_q = on_cpu.queries(kernel, q)
    u, r = on_cpu.keys(kernel, k)
    if key_mask is not None:
        r = mask_keys(r, u, key_mask)
    floor = on_cpu.floor(kernel)
    if is_causal:
        sums, weight = causal_sums(phi_q, u, r, v, floor)
    else:
        r = None if r is None else r.flatten(0, 1)
        sums, weight = _sums(phi_q.flatten(0, 1), u.flatten(0, 1), r, v.flatten(0, 1), floor)
    if isinstance(kernel, ExponentialKernel) and has_tiny_sum(weight, k.shape[-2]):
        return exact_attention(kernel, q, k, v, key_mask, is_causal)
    # In place only without gradients: autograd keeps the sums for backward.
    return (sums / weight if sums.requires_grad else sums.div_(weight)).view(*q.shape[:-1], v.shape[-1])


def _sums(phi_q: Tensor, u: Tensor, r: Tensor | None, v: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """The numerator (G,Nq,D) and the denominator (G,Nq,1) of attention for key features u_j exp(r_j)."""
    if r is not None:  # masked keys have r_j = -inf
        kept = r > -torch.inf
        scale = torch.exp(r - finite(r.amax(-2, keepdim=True)))
        sums = torch.baddbmm(TINY * (v * kept).sum(-2, keepdim=True), phi_q, torch.bmm(u.mT, v * scale))
        return sums, _row_sums(phi_q, u * scale) + guard(kept.sum(-2, keepdim=True))
    sums = torch.bmm(phi_q, torch.bmm(u.mT, v))
    weight = _row_sums(phi_q, u)
    if floor <= SAFE_FLOOR:
        sums = sums + TINY * v.sum(-2, keepdim=True)
        weight = weight + TINY * v.shape[1]
    return sums, weight


def _row_sums(phi_q: Tensor, phi_k: Tensor) -> Tensor:
    """The sum of weights of each query: (G,Nq,M), (G,Nk,M) -> (G,Nq,1)."""
    return (phi_q * phi_k.sum(-2, keepdim=True)).sum(-1, keepdim=True)
