"""Softmax attention: the exact baseline of every comparison.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.mixer import MIXERS, Mixer, allowed_keys, full_precision


@MIXERS.register("softmax")
class Softmax(Mixer):
    """w = softmax(q k^T / sqrt(D)) through torch's fused kernel; O(N^2 D) time, O(N) memory."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed_keys(q, k, key_mask, self.causal))

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, k) as (q, k):
            scores = q @ k.mT / q.shape[-1] ** 0.5
            allowed = allowed_keys(q, k, key_mask, self.causal)
            if allowed is None:
                return scores.softmax(-1)
            # A row without keys is 0/0; torch's kernel returns zeros there, and so does this.
            return scores.masked_fill(~allowed, -torch.inf).softmax(-1).masked_fill(~allowed, 0.0)
