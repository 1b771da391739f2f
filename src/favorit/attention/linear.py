"""Linear attention over any kernel.

Shapes: B batch, H heads, N tokens (Nq queries, Nk keys), D head width, M features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from favorit.attention import route
from favorit.attention.dtypes import full_precision, in_full_precision
from favorit.attention.kernels.contract import Kernel
from favorit.attention.mixer import Mixer, UnprojectedTokens, allowed_keys, keep
from favorit.attention.prefix_sums import causal_attention
from favorit.attention.stability import TINY, finite, guard, mask_keys, or_zero


class Linear(Mixer):
    """out_i = (phi(q_i) sum_j phi(k_j) v_j^T + d sum_j v_j) / (phi(q_i) . sum_j phi(k_j) + d n), d = 1e-30; O(N M D).

    The sums run over the n keys that query i may see. `direct` computes this formula in fp32 or fp64. For eager calls
    on the CPU, `forward` uses a faster implementation of the same formula (`route.LINEAR`, `cpu/`); one of them
    computes in bf16. All other calls use `direct`.

    Source: Katharopoulos et al. 2020, Transformers are RNNs, arXiv 2006.16236. The terms with d are ours.
    """

    def __init__(self, kernel: Kernel, causal: bool = False) -> None:
        super().__init__()
        self.kernel = kernel
        self.causal = causal

    def direct(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The formula with all features in memory: (B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D) -> (B,H,Nq,D)."""
        return in_full_precision(self._direct, q, k, v, key_mask)

    def _direct(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        phi_q, (u, r) = self.kernel.queries(q), self.kernel.keys(k)
        r = mask_keys(r, u, key_mask)
        return causal_attention(phi_q, u, r, v) if self.causal else bidirectional_attention(phi_q, u, r, v)

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, keep(k, key_mask)) as (q, k):
            phi_q, (u, r) = self.kernel.queries(q), self.kernel.keys(k)
            scale = or_zero(r, u).mT.expand(*q.shape[:-1], k.shape[-2])
            allowed = allowed_keys(q, k, key_mask, self.causal)
            if allowed is not None:
                scale = scale.masked_fill(~allowed, -torch.inf)
            seen = scale > -torch.inf
            n = seen.sum(-1, keepdim=True).clamp(min=1)
            w = (phi_q @ u.mT) * torch.exp(scale - finite(scale.amax(-1, keepdim=True)))
            return (w + TINY * seen.to(w)) / n / (w.sum(-1, keepdim=True) / n + TINY)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        return route.run(route.LINEAR, self._call(q, k, v, key_mask))

    def explain(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> str:
        return route.explain(route.LINEAR, self._call(q, k, v, key_mask))

    def read(self, q: Tensor, tokens: UnprojectedTokens) -> Tensor:
        return route.run(route.READ_LINEAR, route.ReadCall(self, Linear, q, tokens))

    def explain_read(self, q: Tensor, tokens: UnprojectedTokens) -> str:
        return route.explain(route.READ_LINEAR, route.ReadCall(self, Linear, q, tokens))

    def _call(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> route.LinearCall:
        # `self.kernel` fails the normal attribute lookup first: 2 of the 80 us of a call with 128 tokens.
        return route.LinearCall(self, self._modules["kernel"], q, keep(k, key_mask), keep(v, key_mask), key_mask)


def bidirectional_attention(phi_q: Tensor, u: Tensor, r: Tensor | None, v: Tensor) -> Tensor:
    """The formula of `Linear` for features phi(q) and phi(k_j) = u_j exp(r_j). Masked keys have r_j = -inf."""
    if r is None:
        phi_k, seen = u, torch.ones_like(u[..., :1])
    else:
        phi_k, seen = u * torch.exp(r - finite(r.amax(-2, keepdim=True))), (r > -torch.inf).to(u)
    numerator = phi_q @ (phi_k.mT @ v) + TINY * (v * seen).sum(-2, keepdim=True)
    denominator = phi_q @ phi_k.sum(-2).unsqueeze(-1) + guard(seen.sum(-2, keepdim=True))
    return numerator / denominator
