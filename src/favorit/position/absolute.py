"""Absolute encodings: a vector for each grid position, added to the tokens once.

Shapes: B batch, N tokens, C model width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit.errors import FavoritError
from favorit.grids import Grid, coordinates, interpolate
from favorit.position.base import POSITIONS, Absolute
from favorit.spec import PositiveFloat


@POSITIONS.register("learned")
class LearnedTable(Absolute):
    """x_n <- x_n + table[n]: a learned row for each prefix token and grid position; O(N C).

    On another grid, the table is interpolated. Prefix tokens without a row stay unchanged.

    Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, arXiv 2010.11929.
    """

    def __init__(self, dim: int, grid: Grid, prefix: int) -> None:
        super().__init__()
        self.grid = grid
        self.table = nn.Parameter(torch.empty(prefix + math.prod(grid), dim))
        nn.init.trunc_normal_(self.table, std=0.02)

    def tokens(self, x: Tensor, grid: Grid, prefix: int) -> Tensor:
        table = self._at(grid)
        table = F.pad(table, (0, 0, max(0, prefix + math.prod(grid) - len(table)), 0))
        if x.shape[-2] != table.shape[0]:
            raise FavoritError(
                f"learned position: {x.shape[-2]} tokens with a prefix of {prefix} do not fit the grid {grid}, "
                f"which needs {table.shape[0]} tokens"
            )
        return x + table.to(x.dtype)

    def resize(self, grid: Grid) -> None:
        self.table = nn.Parameter(self._at(grid).detach().clone())
        self.grid = grid

    def _at(self, grid: Grid) -> Tensor:
        if grid == self.grid:
            return self.table
        prefix = self.table.shape[0] - math.prod(self.grid)
        return torch.cat([self.table[:prefix], interpolate(self.table[prefix:].mT, self.grid, grid).mT])


@POSITIONS.register("sincos2d")
class SinCos2d(Absolute):
    """x_n <- x_n + [sin(column w), cos(column w), sin(row w), cos(row w)], w_i = base^(-i / (C/4 - 1)); O(N C).

    w holds C/4 frequencies. No parameters. Prefix tokens stay unchanged.

    Source: Beyer et al. 2022, Better plain ViT baselines for ImageNet-1k, arXiv 2205.01580; in one dimension from
    Vaswani et al. 2017, Attention Is All You Need, arXiv 1706.03762.
    """

    def __init__(self, dim: int, base: PositiveFloat = 10_000.0) -> None:
        super().__init__()
        if dim % 4:
            raise FavoritError(
                f"sincos2d: dim={dim} is not valid: sines and cosines on two axes need a dim divisible by 4"
            )
        self.base = base

    def tokens(self, x: Tensor, grid: Grid, prefix: int) -> Tensor:
        quarter = x.shape[-1] // 4
        wide = torch.promote_types(x.dtype, torch.float32)
        powers = torch.arange(quarter, device=x.device, dtype=wide) / max(quarter - 1, 1)
        rows, columns = (coordinates(grid, x.device)[:, :, None] * self.base**-powers).unbind(1)
        table = torch.cat([columns.sin(), columns.cos(), rows.sin(), rows.cos()], -1)
        return x + F.pad(table, (0, 0, prefix, 0)).to(x.dtype)
