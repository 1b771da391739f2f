"""A sweep over sizes in which disturbed points are measured again.

Each size is visited twice, at different times, because a disturbance of the machine can last longer than a visit. A
size is visited again while one of its ratios is undecided, and once if one jumps. The curve of a ratio over the size is
smooth: a ratio jumps if it is off the log-log interpolation of its neighbors by more than a factor of `JUMP`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from favorit.bench.spread import all_decided, most_rounds, ratio

# Measured curves have kinks of up to 1.4, where the implementation of a mixer changes.
JUMP = 1.5

Key = TypeVar("Key", bound=Hashable)


def sweep(
    visit: Callable[[int, int], Mapping[Key, Sequence[float]]],
    sizes: Sequence[int],
    repeats: int,
    pairs: Sequence[tuple[Key, Key]],
    listen: Callable[[int, int], None] = lambda done, total: None,
) -> dict[int, dict[Key, list[float]]]:
    """The times of all rounds at each size, by key.

    `visit(size, rounds)` times all keys in that many rounds; `pairs` are the ratios. The two regular visits of a size
    have `repeats` rounds together, a size that is visited again has at most `most_rounds(repeats)`.
    `listen(done, total)` is called with sums of sizes after each visit; the total grows when sizes are visited again.
    """
    found: dict[int, dict[Key, list[float]]] = {size: {} for size in sorted(sizes)}
    counts = dict.fromkeys(found, 0)
    regular = [rounds for rounds in (repeats - repeats // 2, repeats // 2) if rounds]
    done, total = 0, len(regular) * sum(found)

    def measure(size: int, rounds: int) -> None:
        nonlocal done
        for key, values in visit(size, rounds).items():
            found[size].setdefault(key, []).extend(values)
        counts[size] += rounds
        done += size
        listen(done, total)

    for rounds in regular:
        for size in found:
            measure(size, rounds)
    is_decided, most = all_decided(pairs), most_rounds(repeats)
    while True:
        jumps = jumping(found, pairs)
        again = [
            size
            for size, times in found.items()
            if counts[size] < most and (not is_decided(times) or (size in jumps and counts[size] == repeats))
        ]
        if not again:
            return found
        total += sum(again)
        for size in again:
            measure(size, min(repeats, most - counts[size]))


def jumping(found: Mapping[int, Mapping[Key, Sequence[float]]], pairs: Sequence[tuple[Key, Key]]) -> set[int]:
    """The fewest sizes without which no ratio of a pair jumps, found greedily."""
    jumps: set[int] = set()
    for a, b in pairs:
        curve = [
            (math.log(size), math.log(ratio(times[a], times[b]).value), size) for size, times in sorted(found.items())
        ]
        while _roughness(curve) > math.log(JUMP):
            worst = min(curve, key=lambda point: _roughness([other for other in curve if other != point]))
            curve.remove(worst)
            jumps.add(worst[2])
    return jumps


def _roughness(curve: Sequence[tuple[float, float, int]]) -> float:
    """The largest distance in y of a point from the line through its two neighbors; 0 for fewer than three points."""
    return max(
        (
            abs(y - y0 - (y1 - y0) * (x - x0) / (x1 - x0))
            for (x0, y0, _), (x, y, _), (x1, y1, _) in zip(curve, curve[1:], curve[2:], strict=False)
        ),
        default=0.0,
    )
