"""Repeated times as a few numbers, from calls that take turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from favorit import measure

WARMUP = 2
SHORTEST_TURN = 5e-3
MOST_CALLS = 1000

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles, mean and standard deviation of some repetitions."""

    median: float
    low: float
    high: float
    mean: float
    deviation: float


def spread(values: Sequence[float]) -> Spread:
    """One value has no spread: its quartiles are itself and its deviation is 0."""
    several = len(values) > 1
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if several else [values[0]] * 3
    return Spread(median, low, high, statistics.fmean(values), statistics.stdev(values) if several else 0.0)


def interleaved(calls: Mapping[Key, Callable[[], Any]], repeats: int) -> dict[Key, Spread]:
    """Milliseconds of calls that take turns, a b c a b c ..., so that whatever slows the machine slows them alike.

    A call too short for a clock and a busy machine is made several times in its turn.
    """
    named = {str(place): call for place, call in enumerate(calls.values())}
    first = measure.time_interleaved(named, 1, WARMUP)
    counts = [min(MOST_CALLS, math.ceil(SHORTEST_TURN / first[name].median)) for name in named]
    turns = list(zip(calls.values(), counts, strict=True))
    rounds = [[1e3 * _seconds(call, count) for call, count in turns] for _ in range(repeats)]
    return dict(zip(calls, map(spread, zip(*rounds, strict=True)), strict=True))


def interleaved_with_limit(calls: Mapping[Key, Callable[[], Any]], repeats: int) -> tuple[dict[Key, Spread], float]:
    """The same, and the matrix-product limit (FLOPs per second) of a product that takes its turn among them."""
    product, flops = measure.gemm()
    *times, of_product = interleaved(dict(enumerate([*calls.values(), product])), repeats).values()
    return dict(zip(calls, times, strict=True)), 1e3 * flops / of_product.median


def beside_limits(work: Callable[[], Found]) -> tuple[Found, float, float]:
    """What the work gives, and what limits the machine meanwhile, as the mean of before and after, since it drifts:
    FLOPs per second of a matrix product, and what threads pay for each other's numbers (`measure.handing_over`).
    """
    before = measure.gemm_limit(), measure.handing_over()
    found = work()
    product, handing_over = (
        statistics.fmean(pair) for pair in zip(before, (measure.gemm_limit(), measure.handing_over()), strict=True)
    )
    return found, product, handing_over


def _seconds(call: Callable[[], Any], count: int) -> float:
    """Of one call among `count`. Before several, one that is not timed: it finds code and data of the turn before in
    the caches.
    """
    if count > 1:
        call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
