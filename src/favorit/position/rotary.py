"""Rotary position encoding on a 2D grid.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from favorit.errors import FavoritError
from favorit.grids import Grid, coordinates
from favorit.position.base import POSITIONS, QueryKeyPosition
from favorit.spec import PositiveFloat


@POSITIONS.register("rope2d")
class Rope2d(QueryKeyPosition):
    """w_i = base^(-i / (D/4)): pairs of elements rotate by the angle row w_i (first half of D) or column w_i (second
    half); O(N D).

    q_m . k_n then depends on the positions only through the offset m - n, and so do the weights of softmax. For kernels
    with random rows (favor, sincos, relu(m=128)), this holds in expectation over the rows, because their distribution
    does not change under rotations. It does not hold for other kernels, such as relu without m or learned. `base` 100
    fits grids of tens of tokens.

    Source: Su et al. 2021, RoFormer, arXiv 2104.09864; two axes as in Heo et al. 2024, Rotary Position Embedding for
    Vision Transformer, arXiv 2403.13298.
    """

    def __init__(self, head_dim: int, base: PositiveFloat = 100.0) -> None:
        super().__init__()
        if head_dim % 4:
            raise FavoritError(
                f"rope2d: head_dim={head_dim} is not valid: rotated pairs on two axes need a width divisible by 4"
            )
        self.base = base

    def qk(self, q: Tensor, k: Tensor, grid: Grid, prefix: int) -> tuple[Tensor, Tensor]:
        quarter = q.shape[-1] // 4
        wide = torch.promote_types(q.dtype, torch.float32)
        frequencies = self.base ** -(torch.arange(quarter, device=q.device, dtype=wide) / quarter)
        angles = (coordinates(grid, q.device)[:, :, None] * frequencies).flatten(1)
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        return _rotate(q, cos, sin, prefix), _rotate(k, cos, sin, prefix)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, prefix: int) -> Tensor:
    prefix_tokens, patches = x[..., :prefix, :], x[..., prefix:, :]
    even, odd = patches.unflatten(-1, (-1, 2)).unbind(-1)
    rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([prefix_tokens, rotated], -2) if prefix else rotated
