"""Positions: how a layer knows where a token is.

Shapes: B batch, N tokens (prefix tokens first, then the grid in row-major order), C model width, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from favorit.grids import Grid
from favorit.spec import Registry, parse_sum


class Position(nn.Module):
    """Identity. `tokens` is where absolute encodings act, `qk` where rotations and gates do; prefix tokens have no
    place in the grid.
    """

    def tokens(self, x: Tensor, grid: Grid, prefix: int) -> Tensor:
        """(B,N,C) -> (B,N,C), once, before the first layer."""
        return x

    def qk(self, q: Tensor, k: Tensor, grid: Grid, prefix: int) -> tuple[Tensor, Tensor]:
        """(B,H,N,D) twice -> the same, in each layer, before the kernel. Prefix tokens stay as they are."""
        return q, k

    def resize(self, grid: Grid) -> None:
        """Fits parameters that depend on the token grid to another grid."""


class Absolute(Position):
    """Abstract: a position that acts on tokens; a model has one."""


class Relative(Position):
    """Abstract: a position that acts on queries and keys; a model has one for each layer."""


POSITIONS: Registry[Position] = Registry(
    "position", context=("dim", "heads", "head_dim", "grid", "prefix", "layer", "seed")
)

# The table size of a learned position whose grid is not known when it is built; it is interpolated to the grid it
# meets.
DEFAULT_GRID: Grid = (16, 16)


@POSITIONS.register("none")
class NoPosition(Position):
    """No position: a model that sees a set of tokens."""


class Sum(Position):
    """Several positions one after the other: `learned+rope2d`."""

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
    """Whether q and k may leave it other than they came."""
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
    """The position that a sum of specs names, restricted to its absolute or relative parts where `only` says so."""
    context = dict(
        dim=dim, heads=heads, head_dim=head_dim, grid=grid or DEFAULT_GRID, prefix=prefix, layer=layer, seed=seed
    )
    parts = [POSITIONS.build(spec, **context) for spec in parse_sum(text)]
    return Sum([part for part in parts if isinstance(part, only)])
