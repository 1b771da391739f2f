"""Ratios of times with their spread, and rounds that continue until a ratio is decided.

ratio       the median over rounds of time a / time b; both are timed in each round
interval    order statistics of the ratios of the rounds that contain the true median with at least 95 %
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

CONFIDENCE = 0.95
# With fewer rounds, even their smallest and largest ratio contain the median with less than 95 %.
MIN_ROUNDS = 6
# Undecided ratios are measured up to this multiple of the requested rounds.
MOST_REPEATS = 3
# Within this factor, two times count as equal.
EQUAL = 1.05
# An interval whose ends differ by more than this factor decides nothing.
WIDEST = 1.5

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Ratio:
    """A ratio of times and its 95 % interval (`low`, `high`), from this number of rounds."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def is_equal(self) -> bool:
        """True if the interval lies within 5 % of 1."""
        return self.rounds >= MIN_ROUNDS and self.low >= 1 / EQUAL and self.high <= EQUAL

    @property
    def is_decided(self) -> bool:
        """True if the interval is narrow, and either excludes 1 or shows that the times are equal."""
        is_narrow = self.rounds >= MIN_ROUNDS and self.high <= WIDEST * self.low
        return is_narrow and (self.low > 1 or self.high < 1 or self.is_equal)

    def is_at_most(self, target: float) -> bool | None:
        """Whether the true ratio is at most this target; None if the interval does not decide it."""
        if self.rounds < MIN_ROUNDS or self.low <= target < self.high:
            return None
        return self.high <= target

    @property
    def range(self) -> str:
        """The interval as text."""
        return f"{_short(self.low)} to {_short(self.high)}"

    @property
    def text(self) -> str:
        """The ratio and its interval as text; the ratio alone if the interval has no width."""
        return f"{_short(self.value)}x" + ("" if self.low == self.high else f" ({self.range})")

    @property
    def verdict(self) -> str:
        """The ratio and its interval, or that it is undecided."""
        return self.text if self.is_decided else f"undecided ({self.range})"

    def fields(self, name: str = "ratio") -> dict[str, float]:
        """The columns of a CSV file: the ratio, its interval and whether it is decided."""
        return {
            name: self.value,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_decided": self.is_decided,
        }


def ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """a / b, from the times of each in the same rounds."""
    values = sorted(x / y for x, y in zip(a, b, strict=True))
    rank = _lower_rank(len(values))
    return Ratio(statistics.median(values), values[rank], values[-1 - rank], len(values))


def _lower_rank(count: int) -> int:
    """The largest r for which the interval from the r-th smallest to the r-th largest of `count` values, counted from
    0, contains the median with 95 %; 0 if there is none. It misses the median with 2 P(Binomial(count, 1/2) <= r).
    """
    tail, rank = 0.0, -1
    while tail <= (1 - CONFIDENCE) / 2:
        rank += 1
        tail += math.comb(count, rank) / 2**count
    return max(0, rank - 1)


def most_rounds(repeats: int) -> int:
    """The largest number of rounds that are measured if a ratio stays undecided: three times `repeats`, at least 6."""
    return max(MOST_REPEATS * repeats, MIN_ROUNDS)


def measure_rounds(
    time_round: Callable[[], Mapping[Key, float]],
    repeats: int,
    is_decided: Callable[[Mapping[Key, Sequence[float]]], bool],
) -> dict[Key, list[float]]:
    """The times of each key in `repeats` rounds. Undecided, it measures as many again, up to `most_rounds(repeats)`."""
    rounds: dict[Key, list[float]] = {}
    done, most = 0, most_rounds(repeats)
    while done < most:
        count = min(repeats, most - done)
        for _ in range(count):
            for key, value in time_round().items():
                rounds.setdefault(key, []).append(value)
        done += count
        if is_decided(rounds):
            break
    return rounds


def describe_undecided(ratios: Sequence[Ratio], repeats: int) -> list[str]:
    """A line with the number of undecided ratios, the limit of rounds, and what undecided means; none if all are
    decided.
    """
    undecided = sum(not each.is_decided for each in ratios)
    if not undecided:
        return []
    return [
        f"undecided: {undecided} of {len(ratios)} ratios after {most_rounds(repeats)} rounds (the most for "
        f"--repeats {repeats}); their interval contains 1, or its ends differ by more than {WIDEST:g}x"
    ]


def all_decided(pairs: Collection[tuple[Key, Key]]) -> Callable[[Mapping[Key, Sequence[float]]], bool]:
    """A condition for `measure_rounds`: the ratio of each pair is decided."""
    return lambda rounds: all(ratio(rounds[a], rounds[b]).is_decided for a, b in pairs)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
