"""Linear attention in blocks leaves out what keeps exponents in range where they are in range without it, and only
there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from checks import assert_close, builder, gradients, tensors
from favorit.attention import Linear, streamed
from favorit.attention.kernels.contract import Kernel, Lifted, Lifter

FAST, CAREFUL = -2, -1
TOKENS, WIDTH = 70, 8
Inputs = tuple[Tensor, Tensor, Tensor]


def _lengthened(q: Tensor, k: Tensor, v: Tensor, *, of_q: float = 1.0, of_k: float = 1.0) -> Inputs:
    return q * of_q, k * of_k, v


def _one_long_key(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    return q, torch.where(torch.arange(TOKENS)[:, None] == 7, 30 * k, k), v


def _long_in_the_last_head(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    factor = torch.ones(*q.shape[:2], 1, 1, dtype=q.dtype)
    factor[-1, -1] = 60
    return q * factor, k, v


def _with(of_q: float = 1.0, of_k: float = 1.0) -> Callable[..., Inputs]:
    return lambda *inputs: _lengthened(*inputs, of_q=of_q, of_k=of_k)


# What is done to standard normal tokens, the way they take then, and whether the other one would be wrong.
CASES: dict[str, tuple[Callable[..., Inputs], int, bool]] = {
    "ordinary": (_with(), FAST, False),
    "of width 64 and deviation 1, as exponents go": (_with(1.7, 1.7), FAST, False),
    "short": (_with(1e-2, 1e-2), FAST, False),
    "long": (_with(25, 25), CAREFUL, True),
    "long queries": (_with(of_q=60), CAREFUL, True),
    "long keys": (_with(of_k=30), CAREFUL, True),
    "one long key": (_one_long_key, CAREFUL, True),
    "long queries in the last head": (_long_in_the_last_head, CAREFUL, True),
}


def _favor(width: int = WIDTH) -> Linear:
    mixer = builder("favor(m=24)")(head_dim=width, tokens=TOKENS)
    assert isinstance(mixer, Linear)
    return mixer


def _ways_taken(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> dict[bool, list[int]]:
    """Filled as the kernel lifts: the ways taken forward (False) and back (True)."""
    taken: dict[bool, list[int]] = {False: [], True: []}
    right = kernel.lifters

    def watched(like: Tensor, pulled: bool) -> list[Lifter]:
        ways = right(like, pulled)

        def watch(position: int, way: Lifter) -> Lifter:
            def lift(x: Tensor, as_keys: bool, room: Tensor) -> Lifted:
                taken[pulled].append(position)
                return way.lift(x, as_keys, room)

            return way._replace(lift=lift)

        return [watch(position - len(ways), way) for position, way in enumerate(ways)]

    monkeypatch.setattr(kernel, "lifters", watched)
    return taken


def _off(mixer: Linear, inputs: Inputs, mask: Tensor | None = None, upstream: float = 1.0) -> float:
    """How far fp32 is from fp64 on explicit weights, in output and gradients: the worst, in parts of the largest
    entry.
    """
    narrow = [x.detach().float().requires_grad_() for x in inputs]
    wide = [x.detach().double().requires_grad_() for x in narrow]
    out = streamed.streamed(mixer.kernel, *narrow, mask)
    # Rows of fp32 in fp64: the same projection.
    true = mixer.double().weights(*wide[:2], key_mask=mask) @ wide[2]
    pairs = zip([out, *gradients(upstream * out, *narrow)], [true, *gradients(upstream * true, *wide)], strict=True)
    mixer.float()
    return max(
        ((mine.double() - twin).abs().max() / twin.abs().max()).nan_to_num(torch.inf).item() for mine, twin in pairs
    )


@pytest.mark.parametrize("numbers", [TOKENS * 24, 2 * TOKENS * 24, 24 * 64, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_each_length_of_tokens_takes_the_way_that_is_right_for_it(
    case: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of one head, of two, of some tokens, and of all heads."""
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", numbers)
    change, way, _ = CASES[case]
    mixer = _favor()
    taken = _ways_taken(mixer.kernel, monkeypatch)
    assert _off(mixer, change(*tensors(TOKENS, WIDTH))) < 1e-4
    assert taken[False][-1] == way
    assert set(taken[True]) == {way}


@pytest.mark.parametrize("case", [name for name, (_, _, needed) in CASES.items() if needed])
def test_the_fast_way_would_be_wrong_where_it_is_left(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "_in_range", lambda *positive: True)
    assert not _off(_favor(), CASES[case][0](*tensors(TOKENS, WIDTH))) < 1e-2


def test_tokens_out_of_range_are_found_in_the_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast way is given up there: a model of long queries or keys pays for one block."""
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", TOKENS * 24)
    mixer = _favor()
    taken = _ways_taken(mixer.kernel, monkeypatch)
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH))
    streamed.streamed(mixer.kernel, 60 * q, k, v, None)
    assert taken[False] == [FAST] * 2 + [CAREFUL] * 2 * 4


def test_both_ways_agree_where_both_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tensors(TOKENS, WIDTH, dtype=torch.float64)
    kernel = _favor().double().kernel
    fast = streamed.streamed(kernel, *inputs, None)
    monkeypatch.setattr(streamed, "_in_range", lambda *positive: False)
    careful = streamed.streamed(kernel, *inputs, None)
    assert not torch.equal(fast, careful), "the same way twice"
    for mine, twin in zip([fast, *gradients(fast, *inputs)], [careful, *gradients(careful, *inputs)], strict=True):
        assert_close(mine, twin, 1e-12)


@pytest.mark.parametrize("length", [1.0, 1e4])
def test_masked_keys_of_any_length_change_nothing(length: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast way, which is not made for them, is not tried."""
    mask = torch.rand(2, TOKENS, generator=torch.Generator().manual_seed(0)) < 0.7
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH))
    mixer = _favor()
    taken = _ways_taken(mixer.kernel, monkeypatch)
    assert _off(mixer, (q, torch.where(mask[:, None, :, None], k, length * k), v), mask) < 1e-4
    assert set(taken[False]) == {CAREFUL}


def _along_the_first_row(mixer: Linear) -> Tensor:
    """The token whose exponent there is 1, and 0 at rows that are orthogonal to it."""
    row = mixer.get_buffer("kernel.projection.rows")[0]
    return row / row.square().sum() * len(row) ** 0.25


def _sums_too_small(along: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """In one feature, exponents of keys are as low as those of queries are high; weights are made of the others."""
    return 0.1 * q + 81 * along, 0.1 * k - 79 * along, v


def _scale_too_small(along: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """One key is so long that its e is 0, with a feature just below overflow: the gradient of its value would be inf
    times 0.
    """
    return q, torch.where(torch.arange(TOKENS)[:, None] == 7, 86 * along, k), v


def _no_sums(z_or_e: Tensor, *weight: Tensor) -> tuple[Tensor, ...]:
    return weight or (z_or_e,)


def _no_scales(z_or_e: Tensor, *weight: Tensor) -> tuple[Tensor, ...]:
    return (z_or_e, *weight) if weight else ()


@pytest.mark.parametrize(
    ("change", "width", "overlooked"), [(_sums_too_small, 64, _no_sums), (_scale_too_small, WIDTH, _no_scales)]
)
def test_weights_alone_do_not_tell(
    change: Callable[..., Inputs],
    width: int,
    overlooked: Callable[..., tuple[Tensor, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """e is looked at before the first block, z with the weights of a block: without the one or the other, gradients are
    wrong somewhere.
    """
    mixer, right = _favor(width), streamed._in_range
    inputs = change(_along_the_first_row(mixer), *tensors(TOKENS, width))
    assert _off(mixer, inputs, upstream=1e4) < 1e-3
    monkeypatch.setattr(streamed, "_in_range", lambda *numbers: right(*overlooked(*numbers)))
    assert not _off(mixer, inputs, upstream=1e4) < 1e-2


def test_a_guard_is_there_down_to_rounding() -> None:
    """Weights a hundred times d: rows are still drawn to the mean of v by a percent."""
    mixer = builder("relu(eps=1e-20)")(head_dim=WIDTH, tokens=TOKENS).double()
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH, dtype=torch.float64))
    q, k = 1e-14 * q, 1e-14 * k
    exact = mixer.weights(q, k) @ v
    unguarded = torch.relu(q) @ (torch.relu(k).mT @ v) / (torch.relu(q) @ torch.relu(k).sum(-2).unsqueeze(-1))
    assert (exact - unguarded).abs().max() > 1e-3
    assert_close(streamed.streamed(mixer.kernel, q, k, v, None), exact, 1e-12)


@pytest.mark.parametrize("spec", ["favor(m=24)", "relu(m=24)", "elu"])
def test_a_number_that_is_none_stays_in_its_image(spec: str) -> None:
    """Beside an image without keys, and one whose features vanish."""
    kernel = builder(spec)(head_dim=WIDTH, tokens=TOKENS).kernel
    q, k, v = (torch.randn(3, 2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)) for _ in range(3))
    q[0, 0, 3], q[2], k[2] = torch.nan, 1e3 * q[2], 1e3 * k[2]
    mask = torch.ones(3, TOKENS, dtype=torch.bool)
    assert streamed.streamed(kernel, q, k, v, mask)[1:].isfinite().all()
    mask[1] = False
    assert streamed.streamed(kernel, q, k, v, mask)[1:].isfinite().all()


def test_the_r_of_a_kernel_stays_as_it_is() -> None:
    """It may be a view of the keys, or expanded."""

    class Shifted(Kernel):
        features = WIDTH

        def queries(self, q: Tensor) -> Tensor:
            return torch.exp(q)

        def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
            r = k.detach()[..., :1]
            return torch.exp(k - r), r

    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH, dtype=torch.float64))
    before = k.clone()
    out = streamed.streamed(Shifted(), q, k, v, None)
    assert torch.equal(k, before)
    assert_close(out, Linear(Shifted()).weights(q, k) @ v, 1e-12)


@settings(max_examples=60)
@given(of_q=st.floats(-2, 1.2), of_k=st.floats(-2, 1.2), uneven=st.floats(0, 1.5))
def test_values_and_gradients_at_any_length(of_q: float, of_k: float, uneven: float) -> None:
    """Queries and keys of 0.01 to 16 times the usual length, keys of one sequence apart by up to 10^1.5."""
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH))
    k = k * 10 ** torch.linspace(of_k - uneven, of_k, TOKENS)[:, None]
    assert _off(_favor(), (q * 10**of_q, k, v)) < 1e-3


def test_a_processor_that_runs_ahead_is_not_waited_for() -> None:
    """Off the CPU there is one way, and nobody looks at numbers."""
    kernel = _favor().kernel
    assert len(kernel.lifters(torch.empty(1), pulled=False)) == 2
    assert len(kernel.to("meta").lifters(torch.empty(1, device="meta"), pulled=False)) == 1
    q, k, v = (torch.empty(2, 2, TOKENS, WIDTH, device="meta") for _ in range(3))
    assert streamed.streamed(kernel, q, k, v, None).shape == q.shape
