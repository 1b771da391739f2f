"""Positions on devices other than the CPU: no operation reads a value, which would raise an error on `meta`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cases_model import POSITIONS as CASES
from favorit.grids import Grid
from favorit.position import QueryKeyPosition, build_position
from favorit.position.base import POSITIONS

DIM, HEADS, HEAD_DIM, GRID, PREFIX = 16, 2, 8, (4, 3), 2
SPECS = [case.spec for entry in CASES.values() for case in entry]


def run(spec: str, grid: Grid, dtype: torch.dtype) -> None:
    """Runs forward and backward on the grid, for a position that was built for GRID."""
    shape = dict(dim=DIM, heads=HEADS, head_dim=HEAD_DIM, grid=GRID, prefix=PREFIX)
    position = build_position(spec, **shape).to("meta", dtype)
    n = PREFIX + torch.Size(grid).numel()
    shapes = (2, n, DIM), (2, HEADS, n, HEAD_DIM), (2, HEADS, n, HEAD_DIM)
    x, q, k = inputs = [torch.empty(each, device="meta", dtype=dtype, requires_grad=True) for each in shapes]
    placed = (position.tokens(x, grid, PREFIX), *position.qk(q, k, grid, PREFIX))
    for before, after in zip(inputs, placed, strict=True):
        assert after.is_meta
        assert (after.shape, after.dtype) == (before.shape, dtype)
    leaves = [*inputs, *position.parameters()]
    gradients = torch.autograd.grad(torch.stack([out.float().sum() for out in placed]).sum(), leaves)
    assert all(gradient.is_meta and gradient.shape == leaf.shape for leaf, gradient in zip(leaves, gradients))


def test_each_registered_position_has_a_spec() -> None:
    assert {spec.partition("(")[0].partition("+")[0] for spec in SPECS} == set(POSITIONS)


@pytest.mark.parametrize("grid", [GRID, (3, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spec", SPECS)
def test_position_runs_on_meta(spec: str, dtype: torch.dtype, grid: Grid) -> None:
    run(spec, grid, dtype)


@pytest.mark.parametrize("spec", SPECS)
def test_position_runs_on_meta_under_the_autocast_of_another_device(spec: str) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(spec, GRID, torch.float32)


class _ScaledByLargest(QueryKeyPosition):
    """Divides by the largest entry as a Python number, which waits for the device."""

    def qk(self, q: Tensor, k: Tensor, grid: Grid, prefix: int) -> tuple[Tensor, Tensor]:
        return q / q.max().item(), k


def test_position_that_reads_values_fails_on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_positions_on_meta.build_position", lambda spec, **shape: _ScaledByLargest())
    with pytest.raises(RuntimeError, match="meta"):
        run("any", GRID, torch.float32)
