"""Blocked favor subtracts maxima from exponents only if features would otherwise leave the safe range. Where row sums
would still vanish, it computes attention from the exponents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from favorit.attention import Linear
from favorit.attention.cpu import blocked
from favorit.attention.cpu.block_features import CPU_KERNELS, BlockFeatures, CpuKernel, Features
from favorit.attention.cpu.favor import in_range
from favorit.attention.cpu.limits import Limits
from favorit.attention.kernels.contract import Kernel
from favorit.attention.kernels.favor import Favor
from favorit.selftest.inputs import assert_close, builder, gradients, tensors

# Positions in the list of implementations, counted from the end.
FAST, STABLE = -2, -1
EXACT = 0  # none of the block features: attention from the exponents
TOKENS, WIDTH = 70, 8
Inputs = tuple[Tensor, Tensor, Tensor]


def _lengthen(q: Tensor, k: Tensor, v: Tensor, *, factor_q: float = 1.0, factor_k: float = 1.0) -> Inputs:
    return q * factor_q, k * factor_k, v


def _lengthen_one_key(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    return q, torch.where(torch.arange(TOKENS)[:, None] == 7, 30 * k, k), v


def _lengthen_queries_of_last_head(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    factor = torch.ones(*q.shape[:2], 1, 1, dtype=q.dtype)
    factor[-1, -1] = 60
    return q * factor, k, v


# How standard normal tokens are changed, which implementation is then used, and whether the fast one would be wrong.
CASES: dict[str, tuple[Callable[..., Inputs], int, bool]] = {
    "ordinary": (_lengthen, FAST, False),
    "exponents as at width 64 and standard deviation 1": (partial(_lengthen, factor_q=1.7, factor_k=1.7), FAST, False),
    "short": (partial(_lengthen, factor_q=1e-2, factor_k=1e-2), FAST, False),
    "long": (partial(_lengthen, factor_q=25, factor_k=25), EXACT, True),
    "long queries": (partial(_lengthen, factor_q=60), STABLE, True),
    "long keys": (partial(_lengthen, factor_k=30), STABLE, True),
    "one long key": (_lengthen_one_key, STABLE, True),
    "long queries in the last head": (_lengthen_queries_of_last_head, STABLE, True),
}


class _TestedFavor(Favor):
    """Favor as another class, so that a test can register its own block features for it."""


class _TestedFeatures(CpuKernel):
    """Favor's block features with another range check. Records the implementations that forward and backward use."""

    def __init__(self, check: Callable[..., bool] = in_range) -> None:
        self.check = check
        self.forward: list[int] = []
        self.backward: list[int] = []

    def block_features(self, kernel: Favor, like: Tensor, needs_grad: bool) -> list[BlockFeatures]:
        implementations = CPU_KERNELS[Favor].block_features(kernel, like, needs_grad)
        used = self.backward if needs_grad else self.forward

        def record(position: int, implementation: BlockFeatures) -> BlockFeatures:
            def compute(x: Tensor, as_keys: bool, buffer: Tensor) -> Features:
                used.append(position)
                return implementation.compute(x, as_keys, buffer)

            check = None if implementation.is_valid is None else self.check
            return implementation._replace(compute=compute, is_valid=check)

        return [record(number - len(implementations), each) for number, each in enumerate(implementations)]


@pytest.fixture(autouse=True)
def features() -> Iterator[_TestedFeatures]:
    """The block features that `_favor` uses in this test."""
    CPU_KERNELS[_TestedFavor] = _TestedFeatures()
    yield CPU_KERNELS[_TestedFavor]
    del CPU_KERNELS[_TestedFavor]


def _never(weight: Tensor, keys: int) -> bool:
    """Replaces `has_tiny_sum`: attention is never computed from the exponents."""
    return False


def _favor(width: int = WIDTH) -> Linear:
    mixer = builder("favor(m=24)")(head_dim=width, tokens=TOKENS)
    assert isinstance(mixer, Linear)
    mixer.kernel.__class__ = _TestedFavor
    return mixer


def _attend(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, elements: int = 1 << 20) -> Tensor:
    return blocked.attend(q, k, v, mask, kernel, Limits(block_elements=elements))


def _worst_error(
    mixer: Linear, inputs: Inputs, mask: Tensor | None = None, factor: float = 1.0, elements: int = 1 << 20
) -> float:
    """The largest difference of fp32 from explicit weights in fp64, in outputs and gradients, relative to the largest
    entry. Outputs are multiplied by `factor` before the gradients are taken.
    """
    narrow = [x.detach().float().requires_grad_() for x in inputs]
    wide = [x.detach().double().requires_grad_() for x in narrow]
    out = _attend(mixer.kernel, *narrow, mask, elements)
    # The fp32 rows in fp64: the same projection.
    exact = mixer.double().weights(*wide[:2], key_mask=mask) @ wide[2]
    pairs = zip([out, *gradients(factor * out, *narrow)], [exact, *gradients(factor * exact, *wide)], strict=True)
    mixer.float()
    return max(
        ((mine.double() - twin).abs().max() / twin.abs().max()).nan_to_num(torch.inf).item() for mine, twin in pairs
    )


@pytest.mark.parametrize("elements", [TOKENS * 24, 2 * TOKENS * 24, 24 * 64, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_valid_implementation_is_used_at_each_norm(case: str, elements: int, features: _TestedFeatures) -> None:
    """Blocks are one head, two heads, some tokens of a head, or all heads."""
    change, implementation, _ = CASES[case]
    assert _worst_error(_favor(), change(*tensors(TOKENS, WIDTH)), elements=elements) < 1e-4
    assert features.forward[-1] == (implementation or STABLE)
    assert set(features.backward) == ({implementation} if implementation else set())


@pytest.mark.parametrize("case", [name for name, (_, _, needs_stable) in CASES.items() if needs_stable])
def test_fast_implementation_is_wrong_for_inputs_that_it_rejects(
    case: str, features: _TestedFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "has_tiny_sum", _never)
    features.check = lambda *positive: True
    assert not _worst_error(_favor(), CASES[case][0](*tensors(TOKENS, WIDTH))) < 1e-2


def test_fast_implementation_stops_at_the_first_block_out_of_range(features: _TestedFeatures) -> None:
    """So long queries or keys cost only one additional block."""
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH))
    _attend(_favor().kernel, 60 * q, k, v, None, elements=TOKENS * 24)
    assert features.forward == [FAST] * 2 + [STABLE] * 2 * 4


def test_fast_and_stable_implementations_agree_in_range(features: _TestedFeatures) -> None:
    inputs = tensors(TOKENS, WIDTH, dtype=torch.float64)
    kernel = _favor().double().kernel
    fast = _attend(kernel, *inputs, None)
    features.check = lambda *positive: False
    stable = _attend(kernel, *inputs, None)
    assert not torch.equal(fast, stable), "the same implementation twice"
    for mine, twin in zip([fast, *gradients(fast, *inputs)], [stable, *gradients(stable, *inputs)], strict=True):
        assert_close(mine, twin, 1e-12)


@pytest.mark.parametrize("length", [1.0, 1e4])
def test_masked_keys_of_any_norm_do_not_change_outputs(length: float, features: _TestedFeatures) -> None:
    """With a mask, the fast implementation is not tried."""
    mask = torch.rand(2, TOKENS, generator=torch.Generator().manual_seed(0)) < 0.7
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH))
    assert _worst_error(_favor(), (q, torch.where(mask[:, None, :, None], k, length * k), v), mask) < 1e-4
    assert set(features.forward) == {STABLE}


def _along_first_row(mixer: Linear) -> Tensor:
    """The token with exponent 1 in the first feature, and 0 in features whose rows are orthogonal to the first."""
    row = mixer.get_buffer("kernel.projection.rows")[0]
    return row / row.square().sum() * len(row) ** 0.25


def _make_sum_tiny(along: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """In one feature, keys underflow to 0 and queries almost overflow: its gradient for keys would be inf times 0."""
    return 0.1 * q + 87 * along, 0.1 * k - 110 * along, v


def _make_scale_tiny(along: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """One key has e = 0 and a feature just below overflow, so the gradient of its value would be inf times 0."""
    return q, torch.where(torch.arange(TOKENS)[:, None] == 7, 86 * along, k), v


def _ignore_sums(z_or_e: Tensor, *weight: Tensor) -> tuple[Tensor, ...]:
    return weight or (z_or_e,)


def _ignore_scales(z_or_e: Tensor, *weight: Tensor) -> tuple[Tensor, ...]:
    return (z_or_e, *weight) if weight else ()


@pytest.mark.parametrize(
    ("change", "width", "ignore"), [(_make_sum_tiny, 64, _ignore_sums), (_make_scale_tiny, WIDTH, _ignore_scales)]
)
def test_range_check_needs_scales_and_sums(
    change: Callable[..., Inputs],
    width: int,
    ignore: Callable[..., tuple[Tensor, ...]],
    features: _TestedFeatures,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """e is checked before the first block; z and the row sums are checked after each block. Without the check of e or
    of z, a gradient is wrong.
    """
    mixer = _favor(width)
    inputs = change(_along_first_row(mixer), *tensors(TOKENS, width))
    assert _worst_error(mixer, inputs, factor=1e4) < 1e-3
    monkeypatch.setattr(blocked, "has_tiny_sum", _never)
    features.check = lambda *positive: in_range(*ignore(*positive))
    assert not _worst_error(mixer, inputs, factor=1e4) < 1e-2


def test_guard_is_added_to_tiny_row_sums() -> None:
    """Weights are about a hundred times d, so d still moves outputs towards the mean of v by about a percent."""
    mixer = builder("relu(eps=1e-20)")(head_dim=WIDTH, tokens=TOKENS).double()
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH, dtype=torch.float64))
    q, k = 1e-14 * q, 1e-14 * k
    exact = mixer.weights(q, k) @ v
    unguarded = torch.relu(q) @ (torch.relu(k).mT @ v) / (torch.relu(q) @ torch.relu(k).sum(-2).unsqueeze(-1))
    assert (exact - unguarded).abs().max() > 1e-3
    assert_close(_attend(mixer.kernel, q, k, v, None), exact, 1e-12)


@pytest.mark.parametrize("spec", ["favor(m=24)", "relu(m=24)", "elu"])
def test_nan_stays_in_its_image(spec: str) -> None:
    """The other images include one whose keys are all masked and one whose features underflow to 0."""
    kernel = builder(spec)(head_dim=WIDTH, tokens=TOKENS).kernel
    q, k, v = (torch.randn(3, 2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)) for _ in range(3))
    q[0, 0, 3], q[2], k[2] = torch.nan, 1e3 * q[2], 1e3 * k[2]
    mask = torch.ones(3, TOKENS, dtype=torch.bool)
    assert _attend(kernel, q, k, v, mask)[1:].isfinite().all()
    mask[1] = False
    assert _attend(kernel, q, k, v, mask)[1:].isfinite().all()


def test_log_scale_of_a_kernel_is_not_overwritten() -> None:
    """r may be a view of the keys, or expanded."""

    class Shifted(Kernel):
        features = WIDTH

        def queries(self, q: Tensor) -> Tensor:
            return torch.exp(q)

        def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
            r = k.detach()[..., :1]
            return torch.exp(k - r), r

    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH, dtype=torch.float64))
    before = k.clone()
    out = _attend(Shifted(), q, k, v, None)
    assert torch.equal(k, before)
    assert_close(out, Linear(Shifted()).weights(q, k) @ v, 1e-12)


@settings(max_examples=60)
@given(log_q=st.floats(-2, 1.2), log_k=st.floats(-2, 1.2), spread=st.floats(0, 1.5))
def test_values_and_gradients_are_right_at_any_norm(log_q: float, log_k: float, spread: float) -> None:
    """Queries and keys have 0.01 to 16 times the usual norm. Norms of keys differ by a factor of up to 10^1.5."""
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH))
    k = k * 10 ** torch.linspace(log_k - spread, log_k, TOKENS)[:, None]
    assert _worst_error(_favor(), (q * 10**log_q, k, v)) < 1e-3
