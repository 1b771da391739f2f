"""Random projections: rows w_1..w_M in R^D whose features estimate a kernel.

Shapes: M rows, D head width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from favorit import seeds

RowNorm = Literal["chi", "regular"]
Orthogonal = Literal["chi", "regular", "orthonormal"]


def gaussian_rows(m: int, dim: int, generator: torch.Generator) -> Tensor:
    """(m, dim) independent standard normal rows."""
    return torch.randn(m, dim, generator=generator, dtype=torch.float64)


def orthogonal_rows(m: int, dim: int, generator: torch.Generator, norm: Orthogonal = "chi") -> Tensor:
    """(m, dim): blocks of dim orthogonal rows, each block Haar-distributed.

    `norm="chi"` gives rows the lengths of normal vectors, so that each row alone is standard normal and estimates stay
    unbiased; `"regular"` gives all of them sqrt(dim), which is biased. `"orthonormal"` has no blocks: as in
    `torch.nn.init.orthogonal_`, columns are orthonormal, or rows where m < dim. The mean square norm of a row is then
    dim / m, or 1.
    """
    if norm == "orthonormal":
        tall = _haar((max(m, dim), min(m, dim)), generator)
        return tall if m >= dim else tall.mT
    directions = _haar((-(-m // dim), dim, dim), generator).reshape(-1, dim)[:m]
    if norm == "regular":
        return directions * dim**0.5
    return directions * gaussian_rows(m, dim, generator).norm(dim=-1, keepdim=True)


def _haar(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Matrices (..., rows, columns) with orthonormal columns, uniform over all such: QR alone favors some directions
    until R's diagonal is positive.
    """
    q, r = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))
    return q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[..., None, :]


class RandomRows(nn.Module):
    """A buffer `rows` (m, dim) that is a function of (seed, layer, index): the same on every device, rank and
    resumption.

    It is a buffer, so state dictionaries, copies and averages of a model carry the features it was trained with.
    """

    rows: Tensor

    def __init__(
        self, m: int, dim: int, *, layer: int, seed: int, orthogonal: bool = True, norm: Orthogonal = "chi"
    ) -> None:
        super().__init__()
        self.layer, self.seed, self.orthogonal, self.norm = layer, seed, orthogonal, norm
        self.register_buffer("rows", torch.empty(m, dim))
        self._draw(0)

    def redraw(self, index: int) -> None:
        """Draw number `index`. Only in training: a model that is evaluated keeps the features it was trained with."""
        if self.training:
            self._draw(index)

    def _draw(self, index: int) -> None:
        if self.rows.is_meta:  # shapes without values
            return
        source = seeds.generator(self.seed, "features", self.layer, index)
        m, dim = self.rows.shape
        drawn = orthogonal_rows(m, dim, source, self.norm) if self.orthogonal else gaussian_rows(m, dim, source)
        self.rows.copy_(drawn)
