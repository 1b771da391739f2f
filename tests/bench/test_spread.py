"""Ratios of interleaved times: their intervals, when they decide a comparison, and how long they are measured."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import pytest

from favorit import measure
from favorit.bench.spread import MIN_ROUNDS, Ratio, all_decided, measure_rounds, most_rounds, ratio
from favorit.bench.timing import interleave_calls

REPEATS = 7


def test_ratio_is_the_median_over_rounds_and_not_the_ratio_of_medians() -> None:
    a, b = [1.0, 10.0, 100.0], [1.0, 2.0, 50.0]
    assert statistics.median(a) / statistics.median(b) == 5.0
    assert ratio(a, b) == Ratio(2.0, low=1.0, high=5.0, rounds=3)


@pytest.mark.parametrize(
    ("rounds", "rank"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (21, 5), (33, 10)]
)
def test_interval_has_the_order_statistics_of_the_sign_test(rounds: int, rank: int) -> None:
    """The ranks of published tables of distribution-free 95 % intervals of the median."""
    values = [float(value) for value in range(1, rounds + 1)]
    found = ratio(values, [1.0] * rounds)
    assert (found.low, found.high) == (1.0 + rank, float(rounds - rank))


@pytest.mark.parametrize("rounds", [MIN_ROUNDS, 11, 21])
def test_interval_contains_the_true_median_in_95_percent(rounds: int) -> None:
    noise = random.Random(0)
    hits, trials = 0, 2000
    for _ in range(trials):
        found = ratio([noise.lognormvariate(0, 0.5) for _ in range(rounds)], [1.0] * rounds)
        hits += found.low <= 1.0 <= found.high
    assert hits / trials > 0.94


@pytest.mark.parametrize(
    ("low", "high", "rounds", "is_decided"),
    [
        (4.1, 4.5, 7, True),
        (0.5, 0.7, 7, True),
        (0.9, 1.3, 7, False),  # contains 1
        (4.4, 11.1, 7, False),  # too wide
        (0.97, 1.04, 7, True),  # equal within 5 %
        (0.94, 1.01, 7, False),
        (4.1, 4.5, 5, False),  # five rounds have no 95 % interval
    ],
)
def test_ratio_is_decided_if_its_interval_is_narrow_and_excludes_one_or_is_equal(
    low: float, high: float, rounds: int, is_decided: bool
) -> None:
    found = Ratio((low + high) / 2, low, high, rounds)
    assert found.is_decided == is_decided
    assert found.verdict.startswith("undecided (") != is_decided
    assert found.fields("speed")["speed_decided"] == is_decided


def test_verdict_has_the_interval() -> None:
    assert Ratio(4.3, 4.1, 4.5, 7).verdict == "4.30x (4.10 to 4.50)"
    assert Ratio(7.0, 4.4, 11.14, 7).verdict == "undecided (4.40 to 11.1)"


def test_target_is_met_missed_or_undecided() -> None:
    assert Ratio(1.5, 1.4, 1.6, 7).is_at_most(1.6) is True
    assert Ratio(1.8, 1.7, 1.9, 7).is_at_most(1.6) is False
    assert Ratio(1.6, 1.5, 1.7, 7).is_at_most(1.6) is None
    assert Ratio(1.5, 1.4, 1.6, 5).is_at_most(1.6) is None


def test_most_rounds_is_three_times_the_repeats_and_at_least_six() -> None:
    assert [most_rounds(repeats) for repeats in (1, 2, 3, 11)] == [6, 6, 9, 33]


@pytest.mark.parametrize(("repeats", "measured"), [(7, [7]), (2, [2, 2, 2]), (4, [4, 4])])
def test_clean_rounds_stop_as_soon_as_an_interval_exists(repeats: int, measured: list[int]) -> None:
    rounds = measure_rounds(lambda: {"a": 2.0, "b": 1.0}, repeats, all_decided([("a", "b")]))
    assert len(rounds["a"]) == len(rounds["b"]) == sum(measured)
    assert ratio(rounds["a"], rounds["b"]).is_decided


def test_noisy_rounds_stop_at_the_bound_and_are_undecided() -> None:
    noise = random.Random(0)
    rounds = measure_rounds(lambda: {"a": noise.lognormvariate(0, 1), "b": 1.0}, REPEATS, all_decided([("a", "b")]))
    assert len(rounds["a"]) == most_rounds(REPEATS)
    assert not ratio(rounds["a"], rounds["b"]).is_decided


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    """The rounds of `interleave_calls` with a simulated clock. `seconds` are those of the calls in each round."""
    now, calls = [0.0], dict.fromkeys(seconds, 0)

    def call(name: str) -> None:
        now[0] += seconds[name][min(calls[name], len(seconds[name]) - 1)]
        calls[name] += 1

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    found = interleave_calls({name: lambda name=name: call(name) for name in seconds}, REPEATS, [("slow", "fast")])
    return {name: stats.values for name, stats in found.items()}


def test_calls_on_a_clean_clock_are_timed_once_and_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, {"slow": [0.04], "fast": [0.01]})
    assert len(found["slow"]) == REPEATS
    assert ratio(found["slow"], found["fast"]).verdict.startswith("4.00x")


def test_calls_disturbed_for_some_rounds_are_timed_longer_and_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three timed rounds of one call take 3 times as long; the first three calls are warm-up."""
    found = timed(monkeypatch, {"slow": [0.04] * 3 + [0.12] * 3 + [0.04], "fast": [0.01]})
    assert REPEATS < len(found["slow"]) <= most_rounds(REPEATS)
    assert ratio(found["slow"], found["fast"]).verdict.startswith("4.00x")


def test_calls_disturbed_in_every_second_round_are_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(monkeypatch, {"slow": [0.04, 0.12] * 50, "fast": [0.01]})
    assert len(found["slow"]) == most_rounds(REPEATS)
    assert ratio(found["slow"], found["fast"]).verdict == "undecided (4.00 to 12.0)"
