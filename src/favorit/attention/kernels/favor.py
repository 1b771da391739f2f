"""FAVOR+: positive orthogonal random features of the softmax kernel.

Shapes: N tokens, D head width, M features.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.kernels.contract import ExponentialKernel
from favorit.attention.kernels.random_features import RandomRows, RowNorm
from favorit.attention.kernels.registry import kernel
from favorit.errors import FavoritError
from favorit.spec import PositiveInt

# `kernel` -> the factor of -|x~|^2 in the exponent.
DECAYS = {"softmax": 0.5, "gaussian": 1.0}


@kernel("favor")
class Favor(ExponentialKernel):
    """phi(x) = exp(W x~ - |x~|^2 / 2), x~ = x / D^(1/4): E[phi(q) . phi(k)] / M = exp(q . k / sqrt(D)); O(N M D).

    W holds M random rows: Haar-orthogonal in blocks of D rows, with the norms of Gaussian vectors (`norm="chi"`). All
    heads of a layer share W. `orthogonal=False` draws independent rows. `norm="regular"` gives every row the norm
    sqrt(D), which makes estimates biased. `features="hyperbolic"` uses M/2 rows W: exp(W x~) and exp(-W x~), each times
    exp(-|x~|^2 / 2). Their products have the same mean with less variance. `kernel="gaussian"` is exp(W x~ - |x~|^2),
    which estimates exp(-|q~ - k~|^2 / 2).

    Queries drop |q~|^2 / 2, which cancels in their weights. Keys keep |k~|^2 / 2: dropping it, or the largest exponent
    of each key, would change the weights of the keys, a known bug of published code.

    Source: Choromanski et al. 2021, Rethinking Attention with Performers, arXiv 2009.14794.
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
        kernel: Literal["softmax", "gaussian"] = "softmax",
    ) -> None:
        super().__init__()
        self.is_hyperbolic = features == "hyperbolic"
        if self.is_hyperbolic and m % 2:
            raise FavoritError(f"favor: m={m} is not valid with features=hyperbolic: m must be even")
        self.features = m
        self.decay = DECAYS[kernel]
        rows = m // 2 if self.is_hyperbolic else m
        self.projection = RandomRows(rows, head_dim, layer=layer, seed=seed, orthogonal=orthogonal, norm=norm)

    def query_exponents(self, q: Tensor) -> Tensor:
        """W q~: the term -|q~|^2 / 2 is the same for all features of a query."""
        u = F.linear(q, self.scaled_rows(q.dtype))
        return torch.cat([u, -u], -1) if self.is_hyperbolic else u

    def key_exponents(self, k: Tensor) -> Tensor:
        return self.query_exponents(k) + self.log_factor(k)

    def redraw(self, index: int) -> None:
        self.projection.redraw(index)

    def scaled_rows(self, dtype: torch.dtype) -> Tensor:
        """W / D^(1/4): scaling the rows is cheaper than scaling all tokens."""
        rows = self.projection.rows
        return rows.to(dtype) * rows.shape[-1] ** -0.25

    def log_factor(self, x: Tensor) -> Tensor:
        """-|x~|^2 / 2, or -|x~|^2 for the Gaussian kernel: a term of all exponents of a token, (..., N, 1)."""
        return x.square().sum(-1, keepdim=True) * (-self.decay * x.shape[-1] ** -0.5)
