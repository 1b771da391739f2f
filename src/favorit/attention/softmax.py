"""Softmax attention: the exact baseline of every comparison.

Shapes: B batch, H heads, N tokens (Nq queries, Nk keys), D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention import route
from favorit.attention.dtypes import full_precision, in_full_precision
from favorit.attention.mixer import MIXERS, Mixer, UnprojectedTokens, allowed_keys, keep


@MIXERS.register("softmax")
class Softmax(Mixer):
    """w = softmax(q k^T / sqrt(D)); O(N^2 D) time, O(N) memory through torch's fused kernel.

    `direct` calls torch's kernel. `forward` calls `direct`, except for training on a CPU (`route.SOFTMAX`): there,
    explicit weights are faster for short sequences, few queries and bf16. They take O(N^2) memory. Transforms of
    torch.func and forward-mode differentiation also use explicit weights, because torch's kernel does not support them.

    Source: Vaswani et al. 2017, Attention Is All You Need, arXiv 1706.03762.
    """

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def direct(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D) -> (B,H,Nq,D)."""
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed_keys(q, k, key_mask, self.causal))

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, keep(k, key_mask)) as (q, k):
            scores = q @ k.mT / q.shape[-1] ** 0.5
            allowed = allowed_keys(q, k, key_mask, self.causal)
            if allowed is None:
                return scores.softmax(-1)
            # The softmax of a row without keys is NaN. It is replaced by zeros, which torch's kernel returns too.
            return scores.masked_fill(~allowed, -torch.inf).softmax(-1).masked_fill(~allowed, 0.0)

    def explicit(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """`direct` with explicit weights, by operations that have derivatives of any order."""
        return in_full_precision(lambda q, k, v: self.weights(q, k, key_mask=key_mask) @ v, q, k, v)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        return route.run(route.SOFTMAX, self._call(q, k, v, key_mask))

    def explain(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> str:
        return route.explain(route.SOFTMAX, self._call(q, k, v, key_mask))

    def read(self, q: Tensor, tokens: UnprojectedTokens) -> Tensor:
        return route.run(route.READ_SOFTMAX, route.ReadCall(self, Softmax, q, tokens))

    def explain_read(self, q: Tensor, tokens: UnprojectedTokens) -> str:
        return route.explain(route.READ_SOFTMAX, route.ReadCall(self, Softmax, q, tokens))

    def _call(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> route.SoftmaxCall:
        return route.SoftmaxCall(self, q, keep(k, key_mask), keep(v, key_mask), key_mask)
