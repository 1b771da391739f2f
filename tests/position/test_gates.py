"""irpe_gate and string_gate: x <- x * exp(scale[position])."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from checks_model import randn, same_state, scatter
from favorit import Attention
from favorit.position import build_position

GATES = ("irpe_gate", "string_gate")
GRID, HEADS, HEAD_DIM = (4, 3), 2, 8


def gate(spec: str, seed: int = 0, layer: int = 0, grid: tuple[int, int] = GRID):
    return build_position(spec, dim=16, heads=HEADS, head_dim=HEAD_DIM, grid=grid, seed=seed, layer=layer).double()


def factors(position, grid: tuple[int, int] = GRID) -> tuple[torch.Tensor, torch.Tensor]:
    ones = torch.ones(1, HEADS, math.prod(grid), HEAD_DIM, dtype=torch.float64)
    return position.qk(ones, ones, grid, 0)


@pytest.mark.parametrize("spec", GATES)
def test_gate_multiplies_q_and_k_by_separate_positive_factors(spec):
    position = scatter(gate(spec), 1.0)
    q, k = randn(2, HEADS, 12, HEAD_DIM), randn(2, HEADS, 12, HEAD_DIM, seed=1)
    gate_q, gate_k = factors(position)
    assert min(gate_q.min(), gate_k.min()) > 0
    assert (gate_q - gate_k).abs().max() > 0.1
    assert (gate_q[:, 0] - gate_q[:, 1]).abs().max() > 0.1, "each head has its own gate"
    torch.testing.assert_close(position.qk(q, k, GRID, 0), (q * gate_q, k * gate_k), rtol=1e-14, atol=0)


def test_irpe_gate_equals_its_formula():
    position = scatter(gate("irpe_gate"))
    rows, columns = position.parts[0].axes
    for which, made in enumerate(factors(position)):
        for place, (row, column) in enumerate(itertools.product(range(4), range(3))):
            expected = torch.exp(rows[which, :, :, row] + columns[which, :, :, column])
            torch.testing.assert_close(made[0, :, place], expected, rtol=1e-14, atol=0)


def test_string_gate_equals_its_formula():
    position = scatter(gate("string_gate(features=5)"))
    part = position.parts[0]
    for which, made in enumerate(factors(position)):
        for place, (row, column) in enumerate(itertools.product(range(4), range(3))):
            middle = torch.tensor([(row + 0.5) / 4, (column + 0.5) / 3], dtype=torch.float64)
            waves = torch.cos(2 * math.pi * part.frequencies @ middle + part.phases)
            expected = torch.exp(torch.einsum("r,hrd->hd", waves, part.projection[which]))
            torch.testing.assert_close(made[0, :, place], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("grid", [(8, 6), (2, 9), (1, 1)])
def test_irpe_gate_constant_along_an_axis_stays_constant_at_another_resolution(grid):
    position = gate("irpe_gate")
    rows, columns = position.parts[0].axes
    with torch.no_grad():
        rows += randn(2, HEADS, HEAD_DIM, 1)
        columns += 0.5
    constant = torch.exp(rows[..., :1] + 0.5).mT
    for which, made in enumerate(factors(position, grid)):
        torch.testing.assert_close(made[0], constant[which].expand_as(made[0]), rtol=1e-13, atol=0)


def test_string_gate_at_another_resolution_has_equal_factors_at_equal_positions():
    """Positions run from 0 to 1, so the center of a 3x3 grid is the center of a 9x9 grid."""
    position = scatter(gate("string_gate"))
    coarse, fine = factors(position, (3, 3))[0], factors(position, (9, 9))[0]
    torch.testing.assert_close(
        fine.unflatten(2, (9, 9))[:, :, 1::3, 1::3], coarse.unflatten(2, (3, 3)), rtol=1e-12, atol=0
    )


def test_string_gate_is_a_function_of_seed_and_layer():
    assert same_state(gate("string_gate", seed=3, layer=1), gate("string_gate", seed=3, layer=1))
    assert not same_state(gate("string_gate", seed=3, layer=1), gate("string_gate", seed=4, layer=1))
    assert not same_state(gate("string_gate", seed=3, layer=1), gate("string_gate", seed=3, layer=2))


@pytest.mark.parametrize("spec", GATES)
@pytest.mark.parametrize("mixer", ["softmax", "favor(m=16)", "relu"])
def test_attention_with_a_gate_starts_as_attention_without(spec, mixer):
    x = randn(2, 13, 16, dtype=torch.float32)
    torch.manual_seed(0)
    plain = Attention(16, 2, mixer, grid=GRID, prefix=1, seed=0)
    torch.manual_seed(0)
    gated = Attention(16, 2, mixer, spec, grid=GRID, prefix=1, seed=0)
    assert torch.equal(plain(x, GRID, 1), gated(x, GRID, 1))
    scatter(gated.position, 0.5)
    assert not torch.allclose(plain(x, GRID, 1), gated(x, GRID, 1))
