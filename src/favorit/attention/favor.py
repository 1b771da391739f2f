"""FAVOR+: positive orthogonal random features of the softmax kernel.

Shapes: B batch, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.kernel import Kernel
from favorit.attention.linear import kernel
from favorit.attention.random_features import RandomRows, RowNorm
from favorit.errors import FavoritError
from favorit.spec import PositiveInt


@kernel("favor")
class Favor(Kernel):
    """phi(x) = exp(W x~ - |x~|^2 / 2), x~ = x / D^(1/4): E[phi(q) . phi(k)] / M = exp(q . k / sqrt(D)).

    `features="hyperbolic"` is [exp(u), exp(-u)] over M/2 rows: the same mean, less variance for nearby q and k. One W serves all heads
    of a layer. Of a query, |q~|^2 and the largest exponent are left out: they are factors of the whole row. Of a key, the largest
    exponent goes into r, where the mixer accounts for it; dropping it per key would reweight the keys.
    """

    def __init__(
        self,
        head_dim: int,
        layer: int,
        seed: int,
        m: PositiveInt = 128,
        features: Literal["positive", "hyperbolic"] = "positive",
        orthogonal: bool = True,
        norm: RowNorm = "chi",
    ) -> None:
        super().__init__()
        self.mirrored = features == "hyperbolic"
        if self.mirrored and m % 2:
            raise FavoritError(f"favor: m={m} is not valid with features=hyperbolic: features come in pairs, m must be even")
        self.features = m
        rows = m // 2 if self.mirrored else m
        self.projection = RandomRows(rows, head_dim, layer=layer, seed=seed, orthogonal=orthogonal, norm=norm)

    def queries(self, q: Tensor) -> Tensor:
        exponent = self._exponent(_tilde(q))
        return torch.exp(exponent - exponent.detach().amax(-1, keepdim=True))

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        k = _tilde(k)
        exponent = self._exponent(k) - k.square().sum(-1, keepdim=True) / 2
        r = exponent.detach().amax(-1, keepdim=True)
        return torch.exp(exponent - r), r

    def redraw(self, index: int) -> None:
        self.projection.redraw(index)

    def _exponent(self, x: Tensor) -> Tensor:
        u = F.linear(x, self.projection.rows.to(x.dtype))
        return torch.cat([u, -u], -1) if self.mirrored else u


def _tilde(x: Tensor) -> Tensor:
    return x * x.shape[-1] ** -0.25
