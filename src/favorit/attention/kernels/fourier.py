"""Sine and cosine features of the Gaussian kernel.

Shapes: N tokens, D head width, M features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.kernels.contract import Kernel
from favorit.attention.kernels.random_features import RandomRows, RowNorm
from favorit.attention.kernels.registry import kernel
from favorit.errors import FavoritError
from favorit.spec import PositiveInt


@kernel("sincos")
class SinCos(Kernel):
    """phi(x) = [1, c cos(W x~), c sin(W x~)], c = sqrt(2/m), x~ = x / D^(1/4); O(N m D).

    E[phi(q) . phi(k)] = 1 + exp(-|q~ - k~|^2 / 2). These are random Fourier features with the m/2 rows w_r of W, which
    all heads of a layer share. Features may be negative, but with the constant feature, phi(q) . phi(k) =
    1 + mean_r cos(w_r . (q~ - k~)) is not. The kernel has m + 1 features.

    Source: Rahimi and Recht 2007, Random Features for Large-Scale Kernel Machines; orthogonal rows from Yu et al. 2016,
    Orthogonal Random Features, arXiv 1610.09072. The constant feature is ours.
    """

    def __init__(
        self,
        head_dim: int,
        layer: int,
        seed: int,
        m: PositiveInt = 128,
        orthogonal: bool = True,
        norm: RowNorm = "chi",
    ) -> None:
        super().__init__()
        if m % 2:
            raise FavoritError(f"sincos: m={m} is not valid: m must be even")
        self.features = m + 1
        self.projection = RandomRows(m // 2, head_dim, layer=layer, seed=seed, orthogonal=orthogonal, norm=norm)

    def queries(self, q: Tensor) -> Tensor:
        rows = self.projection.rows
        u = F.linear(q, rows.to(q.dtype) * rows.shape[-1] ** -0.25)
        waves = torch.cat([u.cos(), u.sin()], -1) * len(rows) ** -0.5
        return F.pad(waves, (1, 0), value=1.0)

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        return self.queries(k), None

    def redraw(self, index: int) -> None:
        self.projection.redraw(index)
