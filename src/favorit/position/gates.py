"""Gates: queries and keys are multiplied by positive factors that depend on the grid position.

Linear in N, and usable with any mixer.

    x <- x * exp(scale[position])        scale is initialized to 0, so a gate starts as the identity

Shapes: B batch, H heads, N tokens, D head width, R Fourier features.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from favorit import seeds
from favorit.autocast import without_autocast
from favorit.grids import Grid, coordinates, interpolate
from favorit.position.base import POSITIONS, QueryKeyPosition
from favorit.spec import PositiveInt


class Gate(QueryKeyPosition):
    """Abstract: a scale for each position, separate for queries and keys. Prefix tokens stay unchanged."""

    @abstractmethod
    def scales(self, grid: Grid) -> Tensor:
        """(2, H, N, D): the exponents for q and for k."""

    def qk(self, q: Tensor, k: Tensor, grid: Grid, prefix: int) -> tuple[Tensor, Tensor]:
        # In half precision, the exponents would have errors in their third digit.
        with without_autocast(q):
            gate_q, gate_k = torch.exp(self.scales(grid)).to(q.dtype)
        return _apply(q, gate_q, prefix), _apply(k, gate_k, prefix)


def _apply(x: Tensor, gate: Tensor, prefix: int) -> Tensor:
    gated = x[..., prefix:, :] * gate
    return torch.cat([x[..., :prefix, :], gated], -2) if prefix else gated


@POSITIONS.register("irpe_gate")
class IrpeGate(Gate):
    """x <- x exp(scale[i, j]), scale[i, j] = row[i] + column[j]: learned embeddings per head; O(N D).

    On another grid, the embeddings are interpolated along each axis.

    Source: Guoji (report 5 of five), after Wu et al. 2021, Rethinking and Improving Relative Position Encoding for
    Vision Transformer, arXiv 2107.14222.
    """

    def __init__(self, heads: int, head_dim: int, grid: Grid) -> None:
        super().__init__()
        self.axes = nn.ParameterList(nn.Parameter(torch.zeros(2, heads, head_dim, length)) for length in grid)

    def scales(self, grid: Grid) -> Tensor:
        positions = coordinates(grid, self.axes[0].device)
        along = [
            _at(table, length)[..., positions[:, axis]]
            for axis, (table, length) in enumerate(zip(self.axes, grid, strict=True))
        ]
        return torch.stack(along).sum(0).mT

    def resize(self, grid: Grid) -> None:
        for axis, length in enumerate(grid):
            self.axes[axis] = nn.Parameter(_at(self.axes[axis], length).detach().clone())


def _at(table: Tensor, length: int) -> Tensor:
    return interpolate(table, (table.shape[-1],), (length,))


@POSITIONS.register("string_gate")
class StringGate(Gate):
    """x <- x exp(scale), scale = P cos(2 pi F position + phase): R learned frequencies F and phases; O(N R D).

    P is learned and initialized to 0. Positions run from 0 to 1 along each axis, so that the gate is the same function
    at every resolution.

    Source: Guoji (report 5 of five), which does not specify the details; these are our choice. Named after Schenck
    et al. 2025, STRING, arXiv 2502.02562.
    """

    def __init__(
        self, heads: int, head_dim: int, grid: Grid, layer: int, seed: int, features: PositiveInt = 16
    ) -> None:
        super().__init__()
        generator = seeds.generator(seed, "string_gate", layer)
        self.frequencies = nn.Parameter(nn.init.normal_(torch.empty(features, len(grid)), std=2.0, generator=generator))
        self.phases = nn.Parameter(nn.init.uniform_(torch.empty(features), 0.0, 2 * math.pi, generator=generator))
        self.projection = nn.Parameter(torch.zeros(2, heads, features, head_dim))

    def scales(self, grid: Grid) -> Tensor:
        lengths = torch.tensor(grid, device=self.phases.device)
        positions = (coordinates(grid, self.phases.device).to(self.phases.dtype) + 0.5) / lengths
        waves = torch.cos(2 * math.pi * positions @ self.frequencies.mT + self.phases)
        return waves @ self.projection
