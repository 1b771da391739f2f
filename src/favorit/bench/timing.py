"""Interleaved timing, and the statistics of repeated measurements."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from favorit import measure
from favorit.bench.spread import all_decided, measure_rounds

WARMUP = 2
MIN_ROUND_SECONDS = 5e-3
MAX_CALLS = 1000

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Stats:
    """Median, quartiles (`low`, `high`), mean and standard deviation of repeated measurements, and their `values`."""

    median: float
    low: float
    high: float
    mean: float
    deviation: float
    values: tuple[float, ...]


def describe(values: Sequence[float]) -> Stats:
    """The statistics of the values. For a single value, both quartiles are that value and the deviation is 0."""
    if len(values) == 1:
        return Stats(values[0], values[0], values[0], values[0], 0.0, tuple(values))
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Stats(median, low, high, statistics.fmean(values), statistics.stdev(values), tuple(values))


def interleave_calls(
    calls: Mapping[Key, Callable[[], Any]], repeats: int, pairs: Collection[tuple[Key, Key]] = ()
) -> dict[Key, Stats]:
    """Milliseconds of each call, timed in rounds a b c a b c ..., so that slow phases of the machine affect all calls.

    A call shorter than 5 ms is repeated within its round. Rounds continue as in `measure_rounds` until the ratio of
    each pair is decided.
    """
    named = {str(index): call for index, call in enumerate(calls.values())}
    first = measure.time_interleaved(named, 1, WARMUP)
    counts = [min(MAX_CALLS, math.ceil(MIN_ROUND_SECONDS / first[name].median)) for name in named]
    counted = list(zip(calls.items(), counts, strict=True))

    def time_round() -> dict[Key, float]:
        return {key: 1e3 * _mean_seconds(call, count) for (key, call), count in counted}

    rounds = measure_rounds(time_round, repeats, all_decided(pairs))
    return {key: describe(values) for key, values in rounds.items()}


def interleave_with_gemm(
    calls: Mapping[Key, Callable[[], Any]], repeats: int, pairs: Collection[tuple[Key, Key]] = ()
) -> tuple[dict[Key, Stats], float]:
    """As `interleave_calls`, with the matrix-product limit (FLOP/s) from a product timed in the same rounds."""
    product, flops = measure.gemm()
    with_product: dict[Any, Callable[[], Any]] = {**calls, None: product}
    times = interleave_calls(with_product, repeats, pairs)
    limit = 1e3 * flops / times[None].median
    return {key: times[key] for key in calls}, limit


def measure_limits_around(work: Callable[[], Result]) -> tuple[Result, float, float]:
    """The result of `work`, the matrix-product limit (FLOP/s) and the cross-core cache penalty.

    The limit and the penalty drift, so each is the mean of a measurement before the work and one after it.
    """
    gemm_before, penalty_before = measure.gemm_limit(), measure.cache_penalty()
    result = work()
    gemm_after, penalty_after = measure.gemm_limit(), measure.cache_penalty()
    return result, (gemm_before + gemm_after) / 2, (penalty_before + penalty_after) / 2


def _mean_seconds(call: Callable[[], Any], count: int) -> float:
    """Mean seconds of `count` calls.

    If `count` is above 1, an untimed call comes first. It reloads the code and data that another call of the round has
    evicted from the caches.
    """
    if count > 1:
        call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
