"""Absolute encodings: the vectors that learned and sincos2d add to the tokens."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from checks_model import randn
from favorit import FavoritError
from favorit.grids import coordinates, interpolate
from favorit.position import build_position


def absolute(spec: str, dim: int = 16, grid: tuple[int, int] = (4, 3), prefix: int = 0):
    return build_position(spec, dim=dim, heads=2, head_dim=8, grid=grid, prefix=prefix).double()


def added(position, grid: tuple[int, int], dim: int = 16, prefix: int = 0) -> torch.Tensor:
    return position.tokens(torch.zeros(1, prefix + math.prod(grid), dim, dtype=torch.float64), grid, prefix)[0]


@pytest.mark.parametrize("dim", [4, 8, 64])
@pytest.mark.parametrize("grid", [(1, 1), (8, 8), (3, 11), (14, 5)])
def test_sincos2d_distinguishes_all_positions(grid, dim):
    table = added(absolute("sincos2d", dim), grid, dim)
    distances = torch.cdist(table, table) + 9 * torch.eye(len(table))
    assert distances.min() > 0.01


def test_sincos2d_equals_its_formula():
    table = added(absolute("sincos2d(base=100)", 8), (3, 2), 8, prefix=1)
    assert (table[0] == 0).all()
    for place, (row, column) in enumerate(itertools.product(range(3), range(2))):
        angles = [axis * w for axis in (column, row) for w in (1.0, 0.01)]
        column_part, row_part = (
            [math.sin(a) for a in half] + [math.cos(a) for a in half] for half in (angles[:2], angles[2:])
        )
        expected = torch.tensor(column_part + row_part, dtype=torch.float64)
        torch.testing.assert_close(table[1 + place], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dim", [1, 6, 30])
def test_sincos2d_with_a_dim_not_divisible_by_four_is_rejected(dim):
    with pytest.raises(FavoritError, match=rf"sincos2d: dim={dim} is not valid.*divisible by 4"):
        absolute("sincos2d", dim)


def test_learned_adds_its_table_row_by_row():
    position = absolute("learned", prefix=1)
    x = randn(2, 13, 16)
    assert torch.equal(position.tokens(x, (4, 3), 1), x + position.parts[0].table)


def test_learned_interpolates_a_linear_table_and_keeps_the_prefix():
    """A table linear in the position stays linear away from the border, within the error of torch's bicubic filter
    (a tenth of a step between positions). A constant table stays constant everywhere.
    """
    position = absolute("learned", grid=(8, 8), prefix=1)
    table = position.parts[0].table
    with torch.no_grad():
        table[0] = 7.0
        table[1:] = (coordinates((8, 8)).double() + 0.5).repeat(1, 8) / 8
    finer = added(position, (16, 16), prefix=1)
    assert (finer[0] == 7).all()
    positions = (coordinates((16, 16)).double() + 0.5).repeat(1, 8) / 16
    inside = ((coordinates((16, 16)) >= 4) & (coordinates((16, 16)) < 12)).all(-1)
    torch.testing.assert_close(finer[1:][inside], positions[inside], rtol=0, atol=0.1 / 16)
    with torch.no_grad():
        table[1:] = 0.25
    for grid in [(16, 16), (3, 13), (1, 1)]:
        torch.testing.assert_close(
            added(position, grid, prefix=1)[1:], torch.full((math.prod(grid), 16), 0.25).double(), rtol=0, atol=1e-13
        )


def test_learned_with_tokens_that_do_not_fit_the_grid_is_rejected():
    with pytest.raises(FavoritError, match=r"12 tokens with a prefix of 0 do not fit the grid \(4, 3\).* needs 13"):
        absolute("learned", prefix=1).tokens(randn(1, 12, 16), (4, 3), 0)


def test_interpolate_at_the_same_grid_is_the_identity():
    values = randn(2, 12)
    assert interpolate(values, (4, 3), (4, 3)) is values


@pytest.mark.parametrize(("old", "new"), [((5,), (9,)), ((4, 3), (2, 7)), ((2, 2, 2), (3, 1, 4))])
def test_interpolate_keeps_constants_on_grids_of_any_length(old, new):
    made = interpolate(torch.full((2, 3, math.prod(old)), 0.5).double(), old, new)
    torch.testing.assert_close(made, torch.full((2, 3, math.prod(new)), 0.5).double(), rtol=0, atol=1e-13)


def test_coordinates_are_in_row_major_order():
    assert coordinates((2, 3)).tolist() == [[row, column] for row in range(2) for column in range(3)]
    assert coordinates((2, 1, 2)).tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
