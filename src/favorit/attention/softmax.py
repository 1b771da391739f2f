"""Softmax attention: the exact baseline of every comparison.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.explicit import explicit_way, trains_on_cpu
from favorit.attention.mixer import MIXERS, Mixer, Tokens, allowed_keys
from favorit.attention.precision import HALVES, full_precision, output_dtype

# Up to this many tokens, torch's kernel on a CPU goes back faster in fp32 than in half precision (LOG.md: at 65 tokens
# 4 times).
FASTER_WIDE = 512


@MIXERS.register("softmax")
class Softmax(Mixer):
    """w = softmax(q k^T / sqrt(D)); O(N^2 D) time, through torch's fused kernel, which keeps O(N) memory.

    Training on a CPU keeps the weights instead where they are few, up to 64 MiB of them, and takes half precision that
    torch's kernel or the processor is slow at as fp32.
    """

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        if key_mask is None and not self.causal and (way := explicit_way(q, k, v)) is not None:
            return way.apply(q, k, v)
        if is_faster_wide(q, k, v):
            dtype = output_dtype(v)
            with full_precision(q, k, v) as wide:
                return Softmax.forward(self, *wide, key_mask=key_mask).to(dtype)
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed_keys(q, k, key_mask, self.causal))

    def explain(self, q: Tensor, k: Tensor, v: Tensor) -> str:
        if not self.causal and (way := explicit_way(q, k, v)) is not None:
            return way.explain(q, k)
        if is_faster_wide(q, k, v):
            with full_precision(q, k, v) as wide:
                return f"in fp32: {Softmax.explain(self, *wide)}"
        return "torch's fused kernel"

    def read(self, q: Tensor, tokens: Tokens) -> Tensor:
        """out_i = W_v sum_j w_ij x_j + b_v, w_i = softmax((W_k^T q_i) . x_j / sqrt(D)): b_k adds the same to all scores
        of a query.

        No product is as large as all tokens times a projection. All heads see the same tokens, and so are more queries
        of one head.
        """
        if not self._folds(q):
            return super().read(q, tokens)
        return tokens.values(self(*_folded(q, tokens)).unflatten(2, q.shape[1:3])[:, 0])

    def explain_read(self, q: Tensor, tokens: Tokens) -> str:
        if not self._folds(q):
            return super().explain_read(q, tokens)
        few = f"projections folded into the queries, {q.shape[-2]} to a head of width {q.shape[-1]}"
        return f"{few}: {self.explain(*_folded(q, tokens))}"

    def _folds(self, q: Tensor) -> bool:
        """Whether scores of C-wide tokens are fewer operations than the projections: H Nq C < C H D for each token.

        A forward of another class may be other mathematics.
        """
        return type(self).forward is Softmax.forward and not self.causal and q.shape[-2] < q.shape[-1]

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, k) as (q, k):
            scores = q @ k.mT / q.shape[-1] ** 0.5
            allowed = allowed_keys(q, k, key_mask, self.causal)
            if allowed is None:
                return scores.softmax(-1)
            # A row without keys is 0/0; torch's kernel returns zeros there, and so does this.
            return scores.masked_fill(~allowed, -torch.inf).softmax(-1).masked_fill(~allowed, 0.0)


def _folded(q: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of one head as wide as the tokens (B,1,H Nq,C), (B,1,N,C): W_k^T q, scaled as if a head were D wide, and
    x twice.
    """
    x, of_keys = tokens.x.unsqueeze(1), tokens.weight[0]
    asked = torch.einsum("bhid,hdc->bhic", q * (x.shape[-1] / q.shape[-1]) ** 0.5, of_keys)
    return asked.flatten(1, 2).unsqueeze(1), x, x


def is_faster_wide(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch's kernel takes half precision better as fp32: a function of the same."""
    return trains_on_cpu(q, k, v) and output_dtype(v) in HALVES and max(q.shape[-2], k.shape[-2]) <= FASTER_WIDE
