"""Position encodings: how a layer knows where a token is.

Shapes: B batch, N tokens (prefix tokens first, then the grid in row-major order), C model width, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from favorit.allocation import within_memory
from favorit.grids import Grid
from favorit.spec import Registry, parse_sum


class Position(nn.Module):
    """The identity. Absolute encodings override `tokens`; rotations and gates override `qk`."""

    def tokens(self, x: Tensor, grid: Grid, prefix: int) -> Tensor:
        """(B,N,C) -> (B,N,C). `ViT` calls it once, before the first layer; a standalone `Attention` calls it on its
        input.
        """
        return x

    def qk(self, q: Tensor, k: Tensor, grid: Grid, prefix: int) -> tuple[Tensor, Tensor]:
        """q and k (B,H,N,D) -> (B,H,N,D). Applied in each layer before the kernel. Prefix tokens stay unchanged."""
        return q, k

    def resize(self, grid: Grid) -> None:
        """Interpolates the parameters that depend on the token grid to another grid."""


class Absolute(Position):
    """Abstract: an encoding of tokens; one for each model."""


class QueryKeyPosition(Position):
    """Abstract: an encoding of queries and keys; one for each layer."""


POSITIONS: Registry[Position] = Registry(
    "position", context=("dim", "heads", "head_dim", "grid", "prefix", "layer", "seed"), within=within_memory
)

# The table size of a learned position whose grid is unknown when it is built. It is interpolated to the actual grid.
DEFAULT_GRID: Grid = (16, 16)


@POSITIONS.register("none")
class NoPosition(Position):
    """x_n <- x_n: no position encoding, the model sees an unordered set of tokens; O(1).

    Source: this project; a control.
    """


class Sum(Position):
    """Several encodings, applied in the given order: `learned+rope2d`."""

    def __init__(self, parts: Sequence[Position]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def tokens(self, x: Tensor, grid: Grid, prefix: int) -> Tensor:
        for part in self._parts:
            x = part.tokens(x, grid, prefix)
        return x

    def qk(self, q: Tensor, k: Tensor, grid: Grid, prefix: int) -> tuple[Tensor, Tensor]:
        for part in self._parts:
            q, k = part.qk(q, k, grid, prefix)
        return q, k

    def resize(self, grid: Grid) -> None:
        for part in self._parts:
            part.resize(grid)

    @property
    def _parts(self) -> Sequence[Position]:
        return list(self.parts)  # type: ignore[arg-type]


def acts_on_qk(position: Position) -> bool:
    """True if the position or one of its parts overrides `qk`."""
    parts = (part for part in position.modules() if isinstance(part, Position))
    return any(type(part).qk not in (Position.qk, Sum.qk) for part in parts)


def build_position(
    text: str,
    *,
    dim: int,
    heads: int,
    head_dim: int,
    grid: Grid | None = None,
    prefix: int = 0,
    layer: int = 0,
    seed: int = 0,
    only: type[Position] = Position,
) -> Position:
    """The position for a sum of specs, such as `learned+rope2d`. `only` selects the parts of one class."""
    context = dict(
        dim=dim, heads=heads, head_dim=head_dim, grid=grid or DEFAULT_GRID, prefix=prefix, layer=layer, seed=seed
    )
    parts = [POSITIONS.build(spec, **context) for spec in parse_sum(text)]
    return Sum([part for part in parts if isinstance(part, only)])
