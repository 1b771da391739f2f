"""Random projections: rows w_1..w_M in R^D whose features estimate a kernel.

Shapes: M rows, D head width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from favorit import seeds

RowNorm = Literal["chi", "regular"]
RowScale = Literal["chi", "regular", "orthonormal"]


def gaussian_rows(m: int, dim: int, generator: torch.Generator) -> Tensor:
    """(m, dim) independent standard normal rows."""
    return torch.randn(m, dim, generator=generator, dtype=torch.float64)


def orthogonal_rows(m: int, dim: int, generator: torch.Generator, norm: RowScale = "chi") -> Tensor:
    """(m, dim): blocks of dim orthogonal rows, each block Haar-distributed.

    `norm="chi"` gives rows the lengths of normal vectors: each row is then standard normal, and estimates are unbiased.
    `"regular"` gives all rows the length sqrt(dim); estimates are then biased. `"orthonormal"` has no blocks: as in
    `torch.nn.init.orthogonal_`, the columns are orthonormal, or the rows if m < dim. The mean squared norm of a row is
    then dim / m, or 1 if m < dim.
    """
    if norm == "orthonormal":
        tall = _haar((max(m, dim), min(m, dim)), generator)
        return tall if m >= dim else tall.mT
    directions = _haar((-(-m // dim), dim, dim), generator).reshape(-1, dim)[:m]
    if norm == "regular":
        return directions * dim**0.5
    return directions * gaussian_rows(m, dim, generator).norm(dim=-1, keepdim=True)


def _haar(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniformly distributed matrices (..., rows, columns) with orthonormal columns.

    The Q of a QR decomposition favors some directions. Making the diagonal of R positive removes this bias.
    """
    q, r = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))
    return q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[..., None, :]


class RandomRows(nn.Module):
    """A buffer `rows` (m, dim) that is a function of (seed, layer, index): equal on all devices and ranks, and after a
    resume.

    State dictionaries, copies and averages of a model include buffers, and so the features it was trained with.
    """

    rows: Tensor

    def __init__(
        self, m: int, dim: int, *, layer: int, seed: int, orthogonal: bool = True, norm: RowScale = "chi"
    ) -> None:
        super().__init__()
        self.layer, self.seed, self.orthogonal, self.norm = layer, seed, orthogonal, norm
        self.register_buffer("rows", torch.empty(m, dim))
        self._draw(0)

    def redraw(self, index: int) -> None:
        """Replaces the rows by draw number `index`. Does nothing in evaluation mode, where a model keeps the features
        it was trained with.
        """
        if self.training:
            self._draw(index)

    def _draw(self, index: int) -> None:
        if self.rows.is_meta:  # meta tensors have no values
            return
        source = seeds.generator(self.seed, "features", self.layer, index)
        m, dim = self.rows.shape
        drawn = orthogonal_rows(m, dim, source, self.norm) if self.orthogonal else gaussian_rows(m, dim, source)
        self.rows.copy_(drawn)
