"""Controls: mixers that ignore queries and keys. Attention helps a model only if it beats them.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.dtypes import full_precision, output_dtype
from favorit.attention.mixer import MIXERS, Mixer, allowed_keys, keep
from favorit.errors import FavoritError


@MIXERS.register("uniform")
class Uniform(Mixer):
    """w_ij = 1 / n_i: the output of query i is the mean of the n_i values that it may see; O(N D).

    Source: this project; a control.
    """

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        dtype = output_dtype(v)
        with full_precision(v) as (v,):
            v, kept = keep(v, key_mask), keep(torch.ones_like(v[..., :1]), key_mask)
            if self.causal:
                total, count = _prefix_sums(v, q.shape[-2]), _prefix_sums(kept, q.shape[-2])
            else:
                total, count = v.sum(-2, keepdim=True), kept.sum(-2, keepdim=True)
            mean = total / count.clamp(min=1)
            return mean.expand(*mean.shape[:-2], q.shape[-2], v.shape[-1]).to(dtype)

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q) as (wide,):
            ones = wide.new_ones(*q.shape[:-1], k.shape[-2])
            allowed = allowed_keys(q, k, key_mask, self.causal)
            kept = ones if allowed is None else ones * allowed
            return kept / kept.sum(-1, keepdim=True).clamp(min=1)


def _prefix_sums(x: Tensor, queries: int) -> Tensor:
    """The sum of x over the keys 0..i for each query i; queries beyond the last key see all keys."""
    sums = F.pad(x.cumsum(-2), (0, 0, 1, 0))
    seen = torch.arange(1, queries + 1, device=x.device).clamp(max=x.shape[-2])
    return sums[..., seen, :]


@MIXERS.register("none")
class NoMixing(Mixer):
    """w = I: every token keeps its own value, and tokens exchange nothing; O(N D).

    With fewer queries than keys, query i is token i.

    Source: this project; a control.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        self._check(q, k)
        return keep(v, key_mask)[..., : q.shape[-2], :].to(output_dtype(v))

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        self._check(q, k)
        with full_precision(q) as (wide,):
            eye = torch.eye(q.shape[-2], k.shape[-2], dtype=wide.dtype, device=wide.device).expand(
                *q.shape[:-1], k.shape[-2]
            )
            return eye if key_mask is None else eye * key_mask[:, None, None, :]

    @staticmethod
    def _check(q: Tensor, k: Tensor) -> None:
        if q.shape[-2] > k.shape[-2]:
            raise FavoritError(
                f"mixer none needs a key for each query, but got {q.shape[-2]} queries and {k.shape[-2]} keys"
            )
