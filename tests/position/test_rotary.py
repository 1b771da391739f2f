"""rope2d: scores depend only on the offset between positions, and norms do not change."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checks_model import randn
from favorit import FavoritError, build_mixer
from favorit.grids import coordinates
from favorit.position import build_position


def rope(head_dim: int, base: float = 100.0):
    return build_position(f"rope2d(base={base})", dim=head_dim, heads=1, head_dim=head_dim)


def scores_by_position(head_dim: int, grid: tuple[int, int], dtype: torch.dtype, base: float = 100.0) -> torch.Tensor:
    """(rows, columns, rows, columns): <q_m, k_n> with the same q and the same k at every position."""
    tokens = grid[0] * grid[1]
    q, k = (randn(1, 1, 1, head_dim, seed=seed, dtype=dtype).expand(1, 1, tokens, head_dim) for seed in (0, 1))
    q, k = rope(head_dim, base).qk(q, k, grid, 0)
    return (q @ k.mT).reshape(*grid, *grid)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@settings(max_examples=25)
@given(
    quarters=st.integers(1, 8),
    rows=st.integers(2, 7),
    columns=st.integers(2, 7),
    base=st.sampled_from([10.0, 100.0, 10_000.0]),
)
def test_score_depends_on_the_offset_only(dtype, tolerance, quarters, rows, columns, base):
    scores = scores_by_position(4 * quarters, (rows, columns), dtype, base)
    torch.testing.assert_close(scores[1:, :, 1:], scores[:-1, :, :-1], rtol=0, atol=tolerance * 4 * quarters)
    torch.testing.assert_close(scores[:, 1:, :, 1:], scores[:, :-1, :, :-1], rtol=0, atol=tolerance * 4 * quarters)


def test_rows_and_columns_rotate_separately_and_every_offset_has_a_distinct_score():
    scores = scores_by_position(16, (5, 4), torch.float64)
    center = scores[2, 2].flatten()
    assert (center[:, None] - center).abs().add(torch.eye(20)).min() > 1e-3
    # Exchanging the halves of the head width exchanges rows and columns.
    swap = torch.arange(16).roll(8)
    q, k = randn(1, 1, 1, 16).expand(1, 1, 20, 16), randn(1, 1, 1, 16, seed=1).expand(1, 1, 20, 16)
    wide_q, wide_k = rope(16).qk(q, k, (5, 4), 0)
    tall_q, tall_k = rope(16).qk(q[..., swap], k[..., swap], (4, 5), 0)
    wide = (wide_q @ wide_k.mT).reshape(5, 4, 5, 4)
    torch.testing.assert_close((tall_q @ tall_k.mT).reshape(4, 5, 4, 5).permute(1, 0, 3, 2), wide, rtol=0, atol=1e-12)


def test_softmax_weights_do_not_change_when_the_image_is_shifted():
    """A 3x3 pattern of q and k has the same weights at every position on a 6x5 grid."""
    grid, head_dim = (6, 5), 8
    q_image, k_image = randn(1, 2, 3, 3, head_dim), randn(1, 2, 3, 3, head_dim, seed=1)
    mixer = build_mixer("softmax", heads=2, head_dim=head_dim)

    def weights(row: int, column: int) -> torch.Tensor:
        q, k = (torch.zeros(1, 2, *grid, head_dim, dtype=torch.float64) for _ in range(2))
        mask = torch.zeros(grid, dtype=torch.bool)
        window = (..., slice(row, row + 3), slice(column, column + 3))
        q[(*window, slice(None))], k[(*window, slice(None))], mask[window] = q_image, k_image, True
        placed = rope(head_dim).qk(q.flatten(2, 3), k.flatten(2, 3), grid, 0)
        inside = mask.flatten()
        return mixer.weights(*placed, key_mask=inside[None])[..., inside, :][..., inside]

    for row, column in [(3, 2), (1, 0), (0, 1)]:
        torch.testing.assert_close(weights(row, column), weights(0, 0), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_rotation_keeps_norms(dtype, tolerance):
    q, k = randn(2, 3, 36, 12, dtype=dtype), randn(2, 3, 36, 12, seed=1, dtype=dtype)
    for before, after in zip((q, k), rope(12).qk(q, k, (5, 7), 1), strict=True):
        torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1), rtol=tolerance, atol=0)


def test_angles_equal_the_formula_and_the_first_position_is_not_rotated():
    head_dim, base = 8, 50.0
    q = torch.zeros(1, 1, 6, head_dim, dtype=torch.float64)
    q[..., 0::2] = 1.0  # each pair is (1, 0), rotated to (cos, sin)
    rotated = rope(head_dim, base).qk(q, q, (2, 3), 0)[0].reshape(6, 4, 2)
    frequencies = torch.tensor([1.0, base**-0.5], dtype=torch.float64)
    for place, (row, column) in enumerate(coordinates((2, 3)).tolist()):
        angles = torch.cat([row * frequencies, column * frequencies])
        torch.testing.assert_close(rotated[place], torch.stack([angles.cos(), angles.sin()], -1), rtol=0, atol=1e-15)


@pytest.mark.parametrize("head_dim", [1, 2, 6, 10, 17])
def test_head_dim_not_divisible_by_four_is_rejected(head_dim):
    with pytest.raises(FavoritError, match=rf"rope2d: head_dim={head_dim} is not valid.*divisible by 4"):
        rope(head_dim)
