"""Linear attention over features exp(E), computed from the exponents E: it equals its formula at any norm.

    out_i = sum_j sum_m exp(A_im + E_jm) v_j / sum_j sum_m exp(A_im + E_jm)

A contains the exponents of queries, E those of keys. With c_m = max_j E_jm, the factors exp(E_jm - c_m) and
exp(A_im + c_m - max_m (A_im + c_m)) are at most 1, and the sum of a row is at least 1. Sums of products of features
that are scaled for each token on its own (`Kernel.queries`, `Kernel.keys`) may underflow to 0 instead: queries and keys
of large norm have their largest features at different m.

Shapes: N tokens (Nq queries, Nk keys), D head width, M features; leading dimensions are batch and heads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.kernels.contract import ExponentialKernel
from favorit.attention.stability import finite


def exact_attention(
    kernel: ExponentialKernel, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, is_causal: bool
) -> Tensor:
    """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D), (B,Nk) -> (B,H,Nq,D). A query without keys gets zeros.

    O(N M D), or O(N M D log N) if causal.
    """
    # A quadratic term overflows for norms above 1e19 in fp32. All such keys then have the same exponents.
    exponents = kernel.key_exponents(k).clamp(min=torch.finfo(k.dtype).min / 4)
    if key_mask is not None:
        exponents = exponents.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    attend = _causal_sums if is_causal else _sums
    sums = attend(kernel.query_exponents(q), exponents, F.pad(v, (0, 1), value=1.0))[0]
    weight = sums[..., -1:]
    return sums[..., :-1] / torch.where(weight > 0, weight, 1.0)


def _sums(a: Tensor, e: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """s_i (..., Nq, D) and t_i (..., Nq, 1) with s_i exp(t_i) = sum_j sum_m exp(A_im + E_jm) v_j."""
    maxima = finite(e.detach().amax(-2, keepdim=True))
    a = a + maxima
    t = a.detach().amax(-1, keepdim=True)
    return torch.exp(a - t) @ (torch.exp(e - maxima).mT @ v), t


def _causal_sums(a: Tensor, e: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The same sums over j <= i.

    Tokens are split into halves, quarters and so on down to single tokens. The right half of each part sees all keys of
    its left half, so `_sums` applies to them, and no maximum includes a later key.
    """
    queries = a.shape[-2]
    padded = 1 << max(queries - 1, 0).bit_length()
    seen = min(queries, e.shape[-2])
    a = F.pad(a, (0, 0, 0, padded - queries))
    e = F.pad(e[..., :seen, :], (0, 0, 0, padded - seen), value=-torch.inf)
    v = F.pad(v[..., :seen, :], (0, 0, 0, padded - seen))
    own = a + e
    t = finite(own.detach().amax(-1, keepdim=True))
    s = torch.exp(own - t).sum(-1, keepdim=True) * v
    half = 1
    while half < padded:
        (_, right), (left_e, _), (left_v, _), (left_s, right_s), (left_t, right_t) = (
            x.unflatten(-2, (-1, 2, half)).unbind(-3) for x in (a, e, v, s, t)
        )
        more_s, more_t = _sums(right, left_e, left_v)
        largest = torch.maximum(right_t, more_t)
        right_s = right_s * torch.exp(right_t - largest) + more_s * torch.exp(more_t - largest)
        s = torch.stack([left_s, right_s], -3).flatten(-4, -2)
        t = torch.stack([left_t, largest], -3).flatten(-4, -2)
        half *= 2
    return s[..., :queries, :], t[..., :queries, :]
