"""Numerical stability of linear attention: scales of keys, masks, and rows of weights that underflow to 0.

Key j has features u_j exp(r_j) (`Kernel.keys`). Attention computes only exp(r_j - max r), so r_j may be any finite
number. u_j and the features of queries may not: their products with v must not overflow (`Linear` states the range). A
masked key has r_j = -inf. Shapes: N keys, M features; leading dimensions are batch and heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from favorit.attention.dtypes import widened

# d, added to each unnormalized weight. If all weights of a row underflow to 0, the output is the mean of v, not 0/0.
TINY = 1e-30
# If all features are above this value, d changes no sum of weights: it is smaller than their rounding, even in fp64.
SAFE_FLOOR = 1e-6


def mask_keys(r: Tensor | None, u: Tensor, key_mask: Tensor | None) -> Tensor | None:
    """r (B,H,N,1) with -inf for masked keys. `key_mask` (B,N) is true for keys to keep."""
    if key_mask is None:
        return r
    return or_zero(r, u).masked_fill(~key_mask[:, None, :, None], -torch.inf)


def or_zero(r: Tensor | None, u: Tensor) -> Tensor:
    """r, or zeros (..., N, 1) where a kernel returns None."""
    return u.new_zeros(*u.shape[:-1], 1) if r is None else r


def finite(r: Tensor) -> Tensor:
    """r with -inf replaced by the lowest finite number. A maximum over no keys is -inf; subtracting it gives NaN."""
    return r.clamp(min=torch.finfo(r.dtype).min)


def has_tiny_sum(weight: Tensor, keys: int) -> bool:
    """True if a sum of the weights of so many keys is NaN or so small that d or underflow changes it by more than
    rounding. Forces a device sync.
    """
    if not weight.numel():
        return False
    # `item` is faster than comparing tensors: 4 instead of 6 us.
    return not weight.detach().amin().item() >= TINY * keys / torch.finfo(widened(weight.dtype)).eps


def guard(count: Tensor) -> Tensor:
    """d n, to be added to a sum of n weights; 1 for n = 0. Without keys all sums are 0, and dividing them by 1 keeps
    gradients small.
    """
    return torch.where(count > 0, TINY * count, 1.0)
