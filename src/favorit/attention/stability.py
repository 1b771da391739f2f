"""Numerical stability of linear attention: the scale of keys, masks, and rows whose features vanish.

Key j has features u_j exp(r_j) (`Kernel.keys`). Only exp(r_j - max r) is ever formed, so no norm of q or k overflows. A
masked key has r_j = -inf. Shapes: N keys, M features; leading dimensions are batch and heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

# d, added to the mean weight of a row: a row whose features all vanish becomes the mean of v instead of 0/0.
TINY = 1e-30
# A row whose features are all above this cannot vanish: d is below rounding beside their products, even in fp64.
SAFE_FLOOR = 1e-6


def mask_keys(r: Tensor | None, u: Tensor, key_mask: Tensor | None) -> Tensor | None:
    """r (B,H,N,1) with -inf for the keys that the mask (B,N) removes."""
    if key_mask is None:
        return r
    return or_zero(r, u).masked_fill(~key_mask[:, None, :, None], -torch.inf)


def or_zero(r: Tensor | None, u: Tensor) -> Tensor:
    """r, or zeros (..., N, 1) where a kernel returns None."""
    return u.new_zeros(*u.shape[:-1], 1) if r is None else r


def finite(r: Tensor) -> Tensor:
    """A maximum of r that can be subtracted: -inf, the maximum over no keys, becomes the lowest finite number."""
    return r.clamp(min=torch.finfo(r.dtype).min)


def guard(count: Tensor) -> Tensor:
    """d n, added to the sum of n weights. Without keys all sums are 0; the guard is then 1, so gradients stay small."""
    return torch.where(count > 0, TINY * count, 1.0)
