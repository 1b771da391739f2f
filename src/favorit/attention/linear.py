"""Linear attention over any kernel.

Shapes: B batch, H heads, N tokens (Nq queries, Nk keys), D head width, M features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from favorit.attention import route
from favorit.attention.dtypes import full_precision, in_full_precision
from favorit.attention.exponential import exact_attention
from favorit.attention.kernels.contract import ExponentialKernel, Kernel
from favorit.attention.mixer import Mixer, UnprojectedTokens, allowed_keys, keep
from favorit.attention.prefix_sums import causal_sums
from favorit.attention.stability import TINY, finite, guard, mask_keys, or_zero


class Linear(Mixer):
    """out_i = (phi(q_i) sum_j phi(k_j) v_j^T + d sum_j v_j) / (phi(q_i) . sum_j phi(k_j) + d n), d = 1e-30; O(N M D).

    The sums run over the n keys that query i may see. For an `ExponentialKernel`, d is 0: its features never vanish
    (`exponential.py`). `direct` computes the formula in fp32 or fp64. For eager calls on the CPU, `forward` uses a
    faster implementation of the same formula (`route.LINEAR`, `cpu/`); one of them computes in bf16. All other calls
    use `direct`.

    In fp32, phi(q_i) . sum_j phi(k_j) v_j must stay below 3e38. Kernels that grow linearly (relu, elu, gelu, learned,
    mixture) reach it at norms of q and k of about 1e17. An `ExponentialKernel` has no such limit.

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
        if isinstance(self.kernel, ExponentialKernel):
            return exact_attention(self.kernel, q, k, v, key_mask, self.causal)
        phi_q, (u, r) = self.kernel.queries(q), self.kernel.keys(k)
        r = mask_keys(r, u, key_mask)
        numerator, denominator = (causal_sums if self.causal else bidirectional_sums)(phi_q, u, r, v)
        return numerator / denominator

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, keep(k, key_mask)) as (q, k):
            if not k.shape[-2]:
                return q @ k.mT
            if isinstance(self.kernel, ExponentialKernel):
                each_key = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:-1], -1)
                return self._direct(q, k, each_key, key_mask)
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


def bidirectional_sums(phi_q: Tensor, u: Tensor, r: Tensor | None, v: Tensor) -> tuple[Tensor, Tensor]:
    """The numerator and denominator of `Linear` for features phi(q) and u_j exp(r_j). Masked keys have r_j = -inf."""
    if r is None:
        phi_k, seen = u, torch.ones_like(u[..., :1])
    else:
        phi_k, seen = u * torch.exp(r - finite(r.amax(-2, keepdim=True))), (r > -torch.inf).to(u)
    numerator = phi_q @ (phi_k.mT @ v) + TINY * (v * seen).sum(-2, keepdim=True)
    denominator = phi_q @ phi_k.sum(-2).unsqueeze(-1) + guard(seen.sum(-2, keepdim=True))
    return numerator, denominator
