"""Repeated times as a few numbers, from calls that take turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    counts = {name: min(MOST_CALLS, math.ceil(SHORTEST_TURN / first[name].median)) for name in named}
    turns = {name: partial(_several, call, counts[name]) for name, call in named.items()}
    rounds = [measure.time_interleaved(turns, 1, warmup=0) for _ in range(repeats)]
    return {key: spread([1e3 * times[name].median / counts[name] for times in rounds]) for key, name in zip(calls, named, strict=True)}


def interleaved_with_limit(calls: Mapping[Key, Callable[[], Any]], repeats: int) -> tuple[dict[Key, Spread], float]:
    """The same, and the matrix-product limit (FLOPs per second) of a product that takes its turn among them."""
    product, flops = measure.gemm()
    *times, of_product = interleaved(dict(enumerate([*calls.values(), product])), repeats).values()
    return dict(zip(calls, times, strict=True)), 1e3 * flops / of_product.median


def beside_limit(work: Callable[[], Found]) -> tuple[Found, float]:
    """What the work gives, and the matrix-product limit of the machine meanwhile: the mean of before and after, as its speed drifts."""
    before = measure.gemm_limit()
    found = work()
    return found, (before + measure.gemm_limit()) / 2


def _several(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()
