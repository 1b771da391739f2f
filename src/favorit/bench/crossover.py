"""From how many tokens on linear attention is faster, or smaller, than torch's fused softmax: by measurement on a grid
of token counts.

ratio(N) = SDPA(N) / mixer(N)       above 1 the mixer wins
N*       = where the non-decreasing curve nearest to log ratio(log N) passes through 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from favorit.bench.memory import peak_bytes
from favorit.bench.plain import Fused
from favorit.bench.speed import (
    FORWARD,
    TRAINING,
    Attend,
    Size,
    attention_calls,
    build,
    check,
    check_memory,
    make_inputs,
)
from favorit.bench.spread import interleaved
from favorit.errors import FavoritError

SDPA, SOFTMAX = "SDPA", "softmax"
GRID = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
NEAR = 1.1
# What is compared: the name of a curve, what is timed for it, and whether its time or its memory counts.
CURVES = {
    "forward": (FORWARD, "median"),
    "training": (TRAINING, "median"),
    "forward memory": (FORWARD, "memory"),
    "training memory": (TRAINING, "memory"),
}


@dataclass(frozen=True)
class Point:
    """One attention at one token count: milliseconds (median, quartiles) and the most bytes alive at once."""

    mixer: str
    what: str
    tokens: int
    median: float
    low: float
    high: float
    memory: int


@dataclass(frozen=True)
class Crossing:
    """`tokens` is N*: None where the mixer never wins on the grid; the first of the grid where it always does
    (`always`).
    """

    mixer: str
    curve: str
    tokens: float | None
    always: bool = False


def grid_to(most: int, advised: int) -> list[int]:
    """The usual token counts, and in place of what is near it the one that advice is wanted for."""
    return sorted(
        [*(count for count in GRID if count <= most and abs(math.log(count / advised)) > math.log(NEAR)), advised]
    )


def measure_points(
    mixers: Sequence[str],
    tokens: Sequence[int],
    *,
    batch: int,
    heads: int,
    head_dim: int,
    repeats: int,
    device: str = "cpu",
) -> Iterator[list[Point]]:
    """The points of one token count after the other: SDPA called plainly, our softmax, and the mixers, in turn."""
    linear = [spec for spec in dict.fromkeys(mixers) if spec != SOFTMAX]
    if not linear:
        raise FavoritError("crossover: give a mixer other than softmax, such as 'relu(m=64)'")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FavoritError(f"device={device} cannot be used here: {' '.join(str(error).split())}") from None
    specs = [SOFTMAX, *linear]
    sizes = [Size(batch, heads, count, head_dim) for count in sorted(set(tokens))]
    for spec in specs:
        check_memory(spec, sizes[-1])
    for size in sizes:
        inputs = make_inputs(size, device)
        attends: dict[str, Attend] = {SDPA: Fused()}
        for spec in specs:
            mixer = build(spec, size).to(device)
            check(spec, mixer, *inputs[:3])
            attends[spec] = mixer
        calls = {
            (name, what): call
            for name, attend in attends.items()
            for what, call in attention_calls(attend, inputs).items()
        }
        times = interleaved(calls, repeats)
        yield [_point(key, size, times[key], call) for key, call in calls.items()]


def _point(key: tuple[str, str], size: Size, times: Any, call: Callable[[], Any]) -> Point:
    return Point(*key, size.tokens, times.median, times.low, times.high, peak_bytes(call))


def ratios(points: Sequence[Point], curve: str, base: str = SDPA) -> dict[str, dict[int, float]]:
    """mixer -> tokens -> base over mixer: above 1 the mixer is faster, or smaller."""
    what, field = CURVES[curve]
    values = {(point.mixer, point.tokens): float(getattr(point, field)) for point in points if point.what == what}
    found: dict[str, dict[int, float]] = {}
    for (mixer, tokens), value in values.items():
        if mixer != base:
            found.setdefault(mixer, {})[tokens] = values[base, tokens] / value
    return found


def crossings(points: Sequence[Point]) -> list[Crossing]:
    """N* of every linear mixer against SDPA, on every curve."""
    return [
        Crossing(mixer, curve, *crossing(list(by_tokens), list(by_tokens.values())))
        for curve in CURVES
        for mixer, by_tokens in ratios(points, curve).items()
        if mixer != SOFTMAX
    ]


def crossing(tokens: Sequence[int], ratio: Sequence[float]) -> tuple[float | None, bool]:
    """(N*, whether it is below the grid): interpolated between logarithms, on the curve made non-decreasing."""
    curve = non_decreasing([math.log(value) for value in ratio])
    if curve[-1] < 0:
        return None, False
    if curve[0] >= 0:
        return float(tokens[0]), True
    for (n, y), (next_n, next_y) in pairwise(zip(tokens, curve, strict=True)):
        if next_y >= 0:
            return n * (next_n / n) ** (-y / (next_y - y)), False
    raise AssertionError("a curve from below 0 to above it passes through it")


def non_decreasing(values: Sequence[float]) -> list[float]:
    """The non-decreasing sequence with the least squared distance: neighbours out of order share their mean.

    More tokens never favour softmax, so what goes down is noise; one slow repetition then moves N* a little instead of
    to the end.
    """
    groups: list[tuple[float, int]] = []
    for value in values:
        groups.append((value, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (later, n), (earlier, m) = groups.pop(), groups.pop()
            groups.append(((later * n + earlier * m) / (n + m), n + m))
    return [value for value, count in groups for _ in range(count)]


def advice(points: Sequence[Point], image: int, patch: int, tokens: int) -> str:
    """One sentence: what to train with at this many tokens, against the faster of SDPA and our softmax, and where
    softmax stays.
    """
    place = f"at {image}x{image} with patch {patch} ({tokens} tokens)"
    best = _faster_softmax(points)
    speed = {mixer: by_tokens for mixer, by_tokens in ratios(best, "training", SDPA).items() if mixer != SOFTMAX}
    mixer = max(speed, key=lambda name: speed[name][tokens])
    ratio = speed[mixer][tokens]
    found, always = crossing(list(speed[mixer]), list(speed[mixer].values()))
    if ratio < 1:
        where = (
            "and at none of the measured counts does it pay"
            if found is None
            else f"it pays from about {found:.0f} tokens on"
        )
        return f"{place} keep softmax: attention by {mixer}, the fastest of the others, trains at {ratio:.2f} of its speed, {where}"
    if found is None:  # it wins here, but not on the curve as a whole
        below = "at fewer tokens keep softmax"
    else:
        below = f"already at {found:.0f} tokens it is no slower" if always else f"below {found:.0f} tokens keep softmax"
    whole = "a whole model gains less: favorit bench speed --preset"
    return f"{place} attention by {mixer} trains {ratio:.1f}x faster than the faster softmax; {below}; {whole}"


def _faster_softmax(points: Sequence[Point]) -> list[Point]:
    """The points with SDPA replaced, at each count, by our softmax where that is faster."""
    ours = {(point.what, point.tokens): point for point in points if point.mixer == SOFTMAX}
    faster = (
        min(point, ours[point.what, point.tokens], key=lambda p: p.median) for point in points if point.mixer == SDPA
    )
    return [*(replace(point, mixer=SDPA) for point in faster), *(point for point in points if point.mixer != SDPA)]
