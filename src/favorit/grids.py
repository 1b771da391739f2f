"""Token grids: coordinates of tokens, and interpolation between grids.

A grid is a tuple of axis lengths, rows before columns. Tokens are in row-major order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.errors import FavoritError
from favorit.grammar import quote

Grid = tuple[int, ...]

MODES = {1: "linear", 2: "bicubic", 3: "trilinear"}


def check_grid(grid: object) -> None:
    """Raises an error unless the grid is a tuple or list of positive integers."""
    axes = grid if isinstance(grid, tuple | list) else ()
    if not axes or any(isinstance(n, bool | float | str) or (isinstance(n, int) and n < 1) for n in axes):
        raise FavoritError(f"grid={quote(grid)} is not valid: the number of tokens along each axis, such as (14, 14)")


def coordinates(grid: Grid, device: torch.device | None = None) -> Tensor:
    """(N, axes): the integer coordinates of each token, in row-major order."""
    axes = [torch.arange(length, device=device) for length in grid]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(math.prod(grid), len(grid))


def interpolate(values: Tensor, old: Grid, new: Grid) -> Tensor:
    """(..., prod(old)) -> (..., prod(new)), bicubic in 2D; the identity if the grids are equal."""
    if old == new:
        return values
    flat = values.reshape(1, -1, *old)
    return F.interpolate(flat, size=new, mode=MODES[len(old)], align_corners=False).reshape(
        *values.shape[:-1], math.prod(new)
    )
