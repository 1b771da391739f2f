"""A sweep over sizes on a simulated machine: disturbed sizes are measured again or undecided."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from favorit.bench.spread import most_rounds, ratio
from favorit.bench.sweep import JUMP, jumping, sweep

SIZES = (16, 32, 64, 128, 256, 512)
REPEATS = 7
PAIR = ("base", "mixer")


def true_ratio(size: int) -> float:
    return size / 100


class Machine:
    """Times `base` and `mixer` with the ratio size / 100, and noise.

    `disturbed` maps (size, visit), counted from 0, to a factor of the base's times in that visit.
    """

    def __init__(self, disturbed: Mapping[tuple[int, int], float] | None = None, noise: float = 0.02) -> None:
        self.disturbed = disturbed or {}
        self.noise = noise
        self.random = random.Random(0)
        self.visits: Counter[int] = Counter()
        self.order: list[int] = []

    def __call__(self, size: int, rounds: int) -> dict[str, list[float]]:
        factor = true_ratio(size) * self.disturbed.get((size, self.visits[size]), 1.0)
        self.visits[size] += 1
        self.order.append(size)
        return {
            "base": [factor * math.exp(self.random.gauss(0, self.noise)) for _ in range(rounds)],
            "mixer": [1.0] * rounds,
        }

    def measure(self) -> dict[int, dict[str, list[float]]]:
        return sweep(self, SIZES, REPEATS, [PAIR])


def test_clean_sizes_are_visited_twice_at_different_times() -> None:
    machine = Machine()
    found = machine.measure()
    assert machine.order == [*SIZES, *SIZES]
    assert all(len(times["base"]) == REPEATS for times in found.values())
    for size, times in found.items():
        assert ratio(times["base"], times["mixer"]).is_decided
        assert ratio(times["base"], times["mixer"]).value == pytest.approx(true_ratio(size), rel=0.1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("visit", [0, 1])
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_size_disturbed_in_one_visit_is_measured_again_and_decided(size: int, visit: int, factor: float) -> None:
    machine = Machine({(size, visit): factor})
    times = machine.measure()[size]
    assert machine.visits[size] > 2
    assert len(times["base"]) <= most_rounds(REPEATS)
    assert ratio(times["base"], times["mixer"]).is_decided
    assert ratio(times["base"], times["mixer"]).value == pytest.approx(true_ratio(size), rel=0.1)
    assert all(machine.visits[other] == 2 for other in SIZES if other != size)


@pytest.mark.parametrize("size", SIZES)
def test_size_disturbed_in_both_visits_jumps_and_is_undecided(size: int) -> None:
    """The rounds agree with each other, so only the jump reveals the disturbance."""
    machine = Machine({(size, 0): 3.0, (size, 1): 3.0})
    times = machine.measure()[size]
    assert machine.visits[size] > 2
    assert not ratio(times["base"], times["mixer"]).is_decided


def test_jump_that_stays_is_measured_once_more_and_kept() -> None:
    machine = Machine({(64, visit): 3.0 for visit in range(9)})
    times = machine.measure()[64]
    assert machine.visits == {**dict.fromkeys(SIZES, 2), 64: 3}
    assert ratio(times["base"], times["mixer"]).is_decided
    assert ratio(times["base"], times["mixer"]).value == pytest.approx(3 * true_ratio(64), rel=0.1)


def test_noisy_machine_is_undecided_at_the_bound() -> None:
    found = Machine(noise=1.0).measure()
    assert all(len(times["base"]) == most_rounds(REPEATS) for times in found.values())
    assert not any(ratio(times["base"], times["mixer"]).is_decided for times in found.values())


def test_bend_of_a_curve_is_no_jump() -> None:
    bent = {size: {"base": [true_ratio(size) * (1.3 if size >= 128 else 1)], "mixer": [1.0]} for size in SIZES}
    assert jumping(bent, [PAIR]) == set()
    bent[64]["base"] = [JUMP * 1.5 * true_ratio(64)]
    assert jumping(bent, [PAIR]) == {64}
    assert jumping({size: bent[size] for size in (32, 64)}, [PAIR]) == set(), "two points have no neighbors"


def test_listener_hears_a_total_that_grows_with_repeated_visits() -> None:
    heard: list[tuple[int, int]] = []
    machine = Machine({(64, 0): 3.0})
    sweep(machine, SIZES, REPEATS, [PAIR], lambda done, total: heard.append((done, total)))
    assert heard[0] == (16, 2 * sum(SIZES))
    assert heard[-1] == (sum(machine.order), sum(machine.order))
    assert heard[-1][0] > 2 * sum(SIZES)


def test_single_repeat_is_extended_until_an_interval_exists() -> None:
    machine = Machine()
    found = sweep(machine, [16, 32, 64], 1, [PAIR])
    assert all(len(times["base"]) == 6 for times in found.values())
