"""Linear attention over any kernel.

Shapes: B batch, H heads, N tokens (Nq, Nk), D head width, M features, C tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention import streamed as in_blocks
from favorit.attention.kernel import Kernel, or_zero
from favorit.attention.mixer import MIXERS, Mixer, allowed_keys, full_precision, is_full_precision, output_dtype
from favorit.attention.streamed import TINY, finite, plain
from favorit.errors import FavoritError
from favorit.spec import Registry, parameters_of

BLOCK = 64


class Linear(Mixer):
    """out_i = (phi(q_i) mean_j phi(k_j) v_j^T + d mean_j v_j) / (phi(q_i) . mean_j phi(k_j) + d), d = 1e-30; O(N M D).

    The means run over the keys that query i may see. Keys come as phi_j exp(r_j); only exp(r_j - max r) is ever formed, so that no
    norm of q or k overflows. A key left out by a mask has r_j = -inf.
    """

    def __init__(self, kernel: Kernel, causal: bool = False) -> None:
        super().__init__()
        self.kernel = kernel
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        # On short sequences a context that changes nothing would cost as much as a product.
        if is_full_precision(q, k, v):
            return self._attend(q, k, v, key_mask)
        dtype = output_dtype(v)
        with full_precision(q, k, v) as (q, k, v):
            return self._attend(q, k, v, key_mask).to(dtype)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if self._in_blocks(q, k):
            return in_blocks.streamed(self.kernel, q, k, v, key_mask)
        features = self.kernel.queries(q), *self._keys(k, key_mask), v
        return _causal(*features) if self.causal else plain(*features, self.kernel.least)

    def explain(self, q: Tensor, k: Tensor, v: Tensor) -> str:
        if self.causal:
            return f"prefix sums over blocks of {BLOCK} tokens"
        if not self._in_blocks(q, k):
            return "all features at once: they are few, or torch.compile is at work"
        groups, tokens = in_blocks.block_sizes(q.shape[:2].numel(), max(q.shape[-2], k.shape[-2]), self.kernel.features)
        return (
            f"blocks of {groups} of the {q.shape[:2].numel()} heads of all images and {tokens} tokens: "
            f"their {self.kernel.features} features stay in cache, recomputed going back"
        )

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, k) as (q, k):
            phi_q, (phi_k, r) = self.kernel.queries(q), self._keys(k, key_mask)
            scale = or_zero(r, phi_k).mT.expand(*q.shape[:-1], k.shape[-2])
            allowed = allowed_keys(q, k, key_mask, self.causal)
            if allowed is not None:
                scale = scale.masked_fill(~allowed, -torch.inf)
            kept = scale > -torch.inf
            count = kept.sum(-1, keepdim=True).clamp(min=1)
            w = (phi_q @ phi_k.mT) * torch.exp(scale - finite(scale.amax(-1, keepdim=True)))
            return (w + TINY * kept.to(w)) / count / (w.sum(-1, keepdim=True) / count + TINY)

    def _in_blocks(self, q: Tensor, k: Tensor) -> bool:
        """Whether features are worth cutting into blocks: a function of shapes."""
        tokens = max(q.numel(), k.numel()) // q.shape[-1]
        # In this order: a compiler that met the sizes first would compile once for each answer.
        return not (self.causal or torch.compiler.is_compiling()) and tokens * self.kernel.features > in_blocks.FEW_NUMBERS

    def _keys(self, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        phi_k, r = self.kernel.keys(k)
        return phi_k, r if key_mask is None else or_zero(r, phi_k).masked_fill(~key_mask[:, None, :, None], -torch.inf)


def _causal(phi_q: Tensor, phi_k: Tensor, r: Tensor | None, v: Tensor) -> Tensor:
    """Prefix sums over blocks of C tokens, O(N (M D + C (M + D))).

    Everything about key j is kept relative to the running maximum of r at the query that reads it, and rescaled as the maximum
    grows: with one maximum for all keys, a late key could push every earlier one below the smallest float.
    """
    n_queries, n_keys, r = phi_q.shape[-2], phi_k.shape[-2], or_zero(r, phi_k)
    # The normaliser is one more column of v: the sum of weights comes out of the same products as their sum of values.
    v_and_one = F.pad(v, (0, 1), value=1.0)
    totals = (v_and_one * (r > -torch.inf)).cumsum(-2)
    state = phi_k.new_zeros(*phi_k.shape[:2], phi_k.shape[-1], v_and_one.shape[-1])
    top = r.new_full((*r.shape[:2], 1, 1), torch.finfo(r.dtype).min)
    blocks = []
    for start in range(0, min(n_queries, n_keys), BLOCK):
        stop = min(start + BLOCK, n_keys)
        rows = slice(start, min(stop, n_queries))
        r_C, phi_C, v_C = r[..., start:stop, :], phi_k[..., start:stop, :], v_and_one[..., start:stop, :]
        tops = torch.maximum(r_C.cummax(-2).values, top)
        seen = tops[..., : rows.stop - start, :]
        within = (phi_q[..., rows, :] @ phi_C.mT) * torch.exp(torch.minimum(r_C.mT - seen, torch.zeros_like(seen)))
        before = (phi_q[..., rows, :] @ state) * torch.exp(top - seen)
        blocks.append(before + within.tril() @ v_C)
        last = tops[..., -1:, :]
        state = state * torch.exp(top - last) + phi_C.mT @ (torch.exp(r_C - last) * v_C)
        top = last
    if n_queries > n_keys:
        # Queries beyond the last key see all keys.
        blocks.append(phi_q[..., n_keys:, :] @ state)
        totals = torch.cat([totals, totals[..., -1:, :].expand(-1, -1, n_queries - n_keys, -1)], -2)
    sums, totals = torch.cat(blocks, -2), totals[..., :n_queries, :]
    mean = (sums + TINY * totals) / totals[..., -1:].clamp(min=1)
    # Where no key is seen yet the mean weight is 0 and so is every sum: the quotient needs any denominator but 0.
    return mean[..., :-1] / mean[..., -1:].clamp(min=TINY)


KERNELS: Registry[Kernel] = Registry("kernel", context=("head_dim", "layer", "seed"))


def add_kernel(name: str, builder: Callable[..., Kernel], parameters: dict[str, Any] | None = None) -> None:
    """Registers a kernel, and the linear mixer over it under the same name: `relu(m=64, causal=True)`."""
    KERNELS.add(name, builder, parameters)
    entry = KERNELS[name]
    reserved = parameters_of(Linear, ("self", "kernel"))
    if clash := reserved.keys() & entry.parameters.keys():
        raise FavoritError(f"kernel {name!r}: {', '.join(sorted(clash))} belongs to the mixer; name the parameter differently")

    def build(**values: Any) -> Linear:
        own = {key: values[key] for key in (*entry.parameters, *entry.context) if key in values}
        return Linear(entry.builder(**own), **{key: values[key] for key in reserved if key in values})

    build.__doc__ = builder.__doc__
    MIXERS.add(name, build, {**entry.parameters, **reserved})


def kernel(name: str) -> Callable[[type[Kernel]], type[Kernel]]:
    """Class decorator: registers a kernel under a name."""

    def decorate(cls: type[Kernel]) -> type[Kernel]:
        add_kernel(name, cls)
        return cls

    return decorate
