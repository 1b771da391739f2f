"""Linformer: softmax attention over keys and values projected along the token axis.

Shapes: B batch, H heads, N tokens, D head width, K projected rows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit.attention.derivatives import is_transformed
from favorit.attention.dtypes import full_precision, output_dtype
from favorit.attention.mixer import MIXERS, Mixer, keep
from favorit.errors import FavoritError
from favorit.grids import Grid, interpolate
from favorit.spec import PositiveInt


@MIXERS.register("linformer")
class Linformer(Mixer):
    """out = softmax(q (E k)^T / sqrt(D)) (F v): E and F are learned, (K, N); O(N K D).

    `share=none` gives each head its own E and F. With `share=heads`, all heads use the same E and F. `share=kv` also
    shares one matrix between keys and values (E = F). Prefix tokens are not projected: each keeps its key and value.
    Masked keys and values are set to zero before the projection.

    Source: Wang et al. 2020, Linformer: Self-Attention with Linear Complexity, arXiv 2006.04768.
    """

    def __init__(
        self,
        heads: int,
        tokens: int | None,
        prefix: int,
        k: PositiveInt = 32,
        share: Literal["none", "kv", "heads"] = "none",
        causal: bool = False,
    ) -> None:
        super().__init__()
        if causal:
            raise FavoritError(
                "linformer: causal=True is not valid: a projected key mixes all positions; use softmax or a kernel"
            )
        if tokens is None or tokens <= prefix:
            raise FavoritError(
                f"linformer: tokens={tokens} is not valid: linformer needs a fixed number of tokens, more than "
                f"prefix={prefix}: pass tokens=... to build_mixer, or grid=(rows, columns) to Attention"
            )
        self.prefix = prefix
        rows = heads if share == "none" else 1
        self.key_projection = nn.Parameter(_draw_projection(rows, k, tokens - prefix))
        self.value_projection = None if share == "kv" else nn.Parameter(_draw_projection(rows, k, tokens - prefix))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        dtype = output_dtype(v)
        with full_precision(q, k, v) as (q, k, v):
            k, v = keep(k, key_mask), keep(v, key_mask)
            k, v = self._project(self._E, k), self._project(self._F, v)
            if is_transformed():  # torch's kernel does not support transforms of torch.func and forward mode
                return (_softmax_weights(q, k) @ v).to(dtype)
            return F.scaled_dot_product_attention(q, k, v).to(dtype)

    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(q, k) as (q, k):
            projected = _softmax_weights(q, self._project(self._E, keep(k, key_mask)))
            first, rest = projected[..., : self.prefix], projected[..., self.prefix :] @ self._F.to(q.dtype)
            return keep(torch.cat([first, rest], -1).mT, key_mask).mT

    def resize(self, old: Grid, new: Grid) -> None:
        ratio = self._E.shape[-1] / torch.Size(new).numel()
        for projection in (self.key_projection, self.value_projection):
            if projection is not None:
                # The sum of each row stays the same: with more tokens, each token has a smaller weight.
                projection.data = interpolate(projection.data, old, new) * ratio

    @property
    def _E(self) -> Tensor:  # noqa: N802
        return self.key_projection

    @property
    def _F(self) -> Tensor:  # noqa: N802
        return self.key_projection if self.value_projection is None else self.value_projection

    def _project(self, projection: Tensor, x: Tensor) -> Tensor:
        first, rest = x[..., : self.prefix, :], x[..., self.prefix :, :]
        if rest.shape[-2] != projection.shape[-1]:
            raise FavoritError(
                f"linformer was built for {projection.shape[-1] + self.prefix} tokens and got {x.shape[-2]}: "
                "use resized() of the model"
            )
        return torch.cat([first, projection.to(x.dtype) @ rest], -2)


def _softmax_weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


def _draw_projection(rows: int, k: int, tokens: int) -> Tensor:
    """Normal entries of variance 1/N, so that a projected key has about the norm of the original keys."""
    return nn.init.normal_(torch.empty(rows, k, tokens), std=tokens**-0.5)
