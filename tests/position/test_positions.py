"""Conformance of every registered position, and sums of positions.

Shapes: B batch, H heads, N tokens, D head width, C model width.
"""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cases_model import POSITIONS as CASES
from cases_model import Case
from checks_model import assert_complete, checks_in, conform, every, randn, same_state, scatter, unreached
from favorit import FavoritError
from favorit.grids import Grid
from favorit.position import POSITIONS, Absolute, Position, QueryKeyPosition, build_position

DIM, HEADS, HEAD_DIM, GRID, PREFIX = 16, 2, 8, (4, 3), 2


def build(spec: str, grid: Grid = GRID, seed: int = 0, layer: int = 0, prefix: int = PREFIX) -> Position:
    context = dict(dim=DIM, heads=HEADS, head_dim=HEAD_DIM, grid=grid, prefix=prefix)
    return build_position(spec, **context, seed=seed, layer=layer).double()


def tensors(grid: Grid = GRID, batch: int = 3, prefix: int = PREFIX) -> tuple[Tensor, Tensor, Tensor]:
    tokens = prefix + torch.Size(grid).numel()
    return (
        randn(batch, tokens, DIM),
        randn(batch, HEADS, tokens, HEAD_DIM, seed=1),
        randn(batch, HEADS, tokens, HEAD_DIM, seed=2),
    )


def apply(
    position: Position, inputs: tuple[Tensor, Tensor, Tensor], grid: Grid = GRID, prefix: int = PREFIX
) -> tuple[Tensor, ...]:
    x, q, k = inputs
    return position.tokens(x, grid, prefix), *position.qk(q, k, grid, prefix)


def check_shape_and_type_kept(spec: str) -> None:
    """Shapes and dtypes stay as they are, in fp64, fp32 and bf16."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        inputs = tuple(tensor.to(dtype) for tensor in tensors())
        for before, after in zip(inputs, apply(build(spec), inputs), strict=True):
            assert before.shape == after.shape
            assert before.dtype == after.dtype


def check_prefix_untouched(spec: str) -> None:
    """Prefix tokens, and their queries and keys, pass unchanged."""
    inputs = tensors()
    for before, after in zip(inputs, apply(scatter(build(spec)), inputs), strict=True):
        assert torch.equal(before[..., :PREFIX, :], after[..., :PREFIX, :])


def check_prefix_untouched_by_qk(spec: str) -> None:
    """The queries and keys of prefix tokens pass unchanged."""
    inputs = tensors()
    for before, after in zip(inputs[1:], apply(scatter(build(spec)), inputs)[1:], strict=True):
        assert torch.equal(before[..., :PREFIX, :], after[..., :PREFIX, :])


def check_prefix_does_not_change_patches(spec: str) -> None:
    """Queries and keys of patches have equal encodings with and without prefix tokens."""
    position, (_, q, k) = scatter(build(spec)), tensors()
    alone = position.qk(q[..., PREFIX:, :], k[..., PREFIX:, :], GRID, 0)
    for longer, shorter in zip(position.qk(q, k, GRID, PREFIX), alone, strict=True):
        assert torch.equal(longer[..., PREFIX:, :], shorter)


def check_identity_at_start(spec: str) -> None:
    """Before training, the position changes nothing."""
    inputs = tensors()
    for before, after in zip(inputs, apply(build(spec), inputs), strict=True):
        assert torch.equal(before, after)


def check_position_matters(spec: str) -> None:
    """Equal tokens at different positions get different encodings."""
    same = tuple(torch.ones_like(tensor) for tensor in tensors(batch=1))
    placed = torch.cat([out.transpose(0, -2).flatten(1) for out in apply(scatter(build(spec)), same)], 1)[PREFIX:]
    distances = torch.cdist(placed, placed) + torch.eye(len(placed))
    assert distances.min() > 1e-3


def check_another_grid(spec: str) -> None:
    """On another grid, parameters are interpolated in forward. `resize` gives the same outputs on that grid."""
    grid = (3, 7)
    position, inputs = scatter(build(spec)), tensors(grid)
    expected = apply(position, inputs, grid)
    resized = copy.deepcopy(position)
    resized.resize(grid)
    for kept, made in zip(expected, apply(resized, inputs, grid), strict=True):
        torch.testing.assert_close(kept, made, rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in resized.parameters())
    assert unreached(resized, lambda: torch.cat([out.flatten() for out in apply(resized, inputs, grid)])) == []


def check_batch_independence(spec: str) -> None:
    """The outputs for an image are the same alone and in a batch."""
    position, inputs = scatter(build(spec)), tensors()
    for whole, alone in zip(apply(position, inputs), apply(position, tuple(t[1:2] for t in inputs)), strict=True):
        assert torch.equal(whole[1:2], alone)


def check_gradients_reach_every_parameter_after_one_update(spec: str) -> None:
    """After one update, every parameter gets a gradient."""
    position, inputs = build(spec), tensors()
    assert unreached(position, lambda: torch.cat([out.flatten() for out in apply(position, inputs)]), updates=1) == []


def check_same_seed_same_position(spec: str) -> None:
    """Two positions with the same seed are equal."""
    torch.manual_seed(0)
    first = build(spec, seed=5)
    torch.manual_seed(0)
    assert same_state(first, build(spec, seed=5))


def check_state_dict_round_trip(spec: str) -> None:
    """The state dictionary contains everything the output depends on."""
    one, other, inputs = scatter(build(spec)), build(spec, seed=1), tensors()
    other.load_state_dict(one.state_dict())
    for first, second in zip(apply(one, inputs), apply(other, inputs), strict=True):
        assert torch.equal(first, second)


CHECKS = checks_in(globals())


def test_every_position_has_an_entry():
    assert_complete(CASES, POSITIONS, CHECKS)


@pytest.mark.parametrize(("case", "check"), every(CASES, CHECKS))
def test_position_conforms(case: Case, check: str):
    conform(case, check, CHECKS[check])


@pytest.mark.parametrize("spec", [case.spec for entry in CASES.values() for case in entry])
@settings(max_examples=10)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), prefix=st.integers(0, 2))
def test_any_grid_and_prefix_keep_shapes_and_stay_finite(spec, rows, columns, prefix):
    grid = (rows, columns)
    inputs = tensors(grid, 1, prefix)
    for built in (grid, GRID):
        for before, after in zip(
            inputs, apply(scatter(build(spec, built, prefix=prefix)), inputs, grid, prefix), strict=True
        ):
            assert before.shape == after.shape
            assert after.isfinite().all()


def test_sum_applies_its_parts_in_order():
    inputs = tensors()
    whole = scatter(build("learned+sincos2d+rope2d+string_gate"))
    expected = inputs
    for part in whole.parts:
        expected = apply(part, expected)
    for one, other in zip(apply(whole, inputs), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(whole.parts) == 4
    # Additions commute. So do a rotation and an addition, which act on different tensors.
    swapped = build("rope2d+string_gate+sincos2d+learned")
    swapped.load_state_dict(
        {f"parts.{[3, 2, 0, 1][int(key[6])]}{key[7:]}": value for key, value in whole.state_dict().items()}
    )
    torch.testing.assert_close(apply(swapped, inputs)[0], apply(whole, inputs)[0])
    torch.testing.assert_close(apply(swapped, inputs)[1], apply(whole, inputs)[1])


@pytest.mark.parametrize(
    ("only", "names"),
    [(Absolute, ["LearnedTable", "SinCos2d"]), (QueryKeyPosition, ["Rope2d", "IrpeGate"])],
    ids=["absolute", "relative"],
)
def test_only_selects_absolute_or_relative_parts(only, names):
    parts = build_position(
        "learned+rope2d+sincos2d+irpe_gate", dim=DIM, heads=HEADS, head_dim=HEAD_DIM, only=only
    ).parts
    assert [type(part).__name__ for part in parts] == names


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rop2d", ["unknown position 'rop2d'", "'rope2d'", "string_gate"]),
        ("learned+", ["learned+"]),
        ("learned*2", ["learned*2"]),
        ("rope2d(bse=10)", ["'bse'", "'base'"]),
        ("rope2d(base=0)", ["rope2d", "base=0", "above 0"]),
        ("string_gate(features=0)", ["string_gate", "features=0", "at least 1"]),
        ("string_gate(features=2.5)", ["features=2.5", "integer"]),
        ("", ["''"]),
    ],
)
def test_invalid_position_is_named(spec, words):
    with pytest.raises(FavoritError) as error:
        build(spec)
    assert all(word in str(error.value) for word in words), str(error.value)
