"""The token count N* from which linear attention needs less time, or less memory, than torch's fused softmax (SDPA).

ratio(N) = SDPA(N) / mixer(N)       above 1 the mixer wins
N*       = zero of the isotonic (non-decreasing least-squares) fit of log ratio as a function of log N
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from favorit.bench.memory import peak_bytes
from favorit.bench.peers.plain_vit import Fused
from favorit.bench.speed import (
    FORWARD,
    TRAINING,
    AttentionFn,
    Size,
    attention_calls,
    build,
    check_memory,
    check_weights,
    make_inputs,
)
from favorit.bench.timing import Stats, interleave_calls
from favorit.errors import FavoritError

SDPA, SOFTMAX = "SDPA", "softmax"
GRID = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
MIN_SPACING = 1.1
MAX_TOKENS = 1024  # of the default grid
MIN_PATCH = 8
# curve -> (the timed call, the field of its points that is compared)
CURVES = {
    "forward": (FORWARD, "median"),
    "training": (TRAINING, "median"),
    "forward memory": (FORWARD, "memory"),
    "training memory": (TRAINING, "memory"),
}


@dataclass(frozen=True)
class Point:
    """One timed call (`what`) at one token count: milliseconds (median, quartiles) and peak memory in bytes."""

    mixer: str
    what: str
    tokens: int
    median: float
    low: float
    high: float
    memory: int


@dataclass(frozen=True)
class Crossing:
    """N* (`tokens`) of one mixer on one curve.

    `tokens` is None if the mixer never wins on the grid. It is the first count of the grid if the mixer always wins
    (`always`).
    """

    mixer: str
    curve: str
    tokens: float | None
    always: bool = False


def default_grid(max_tokens: int, target_tokens: int) -> list[int]:
    """The counts of GRID up to `max_tokens`, and `target_tokens` instead of counts within a factor of 1.1 of it."""
    spaced = [count for count in GRID if abs(math.log(count / target_tokens)) > math.log(MIN_SPACING)]
    return sorted([*(count for count in spaced if count <= max_tokens), target_tokens])


def default_patch(image: int, max_tokens: int) -> int:
    """The smallest patch of at least 8 pixels (or the whole image) that divides the image into at most `max_tokens`
    tokens, with a class token.
    """
    sides = (side for side in range(min(MIN_PATCH, image), image + 1) if image % side == 0)
    return next(side for side in sides if 1 + (image // side) ** 2 <= max_tokens)


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
    """Yields the points of each token count: SDPA called directly, our softmax and the mixers, timed interleaved."""
    linear = [spec for spec in dict.fromkeys(mixers) if spec != SOFTMAX]
    if not linear:
        raise FavoritError("crossover: give a mixer other than softmax, such as 'relu(m=64)'")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FavoritError(f"device={device} is not available: {' '.join(str(error).split())}") from None
    specs = [SOFTMAX, *linear]
    sizes = [Size(batch, heads, count, head_dim) for count in sorted(set(tokens))]
    for spec in specs:
        check_memory(spec, sizes[-1])
    for size in sizes:
        inputs = make_inputs(size, device)
        attentions: dict[str, AttentionFn] = {SDPA: Fused()}
        for spec in specs:
            mixer = build(spec, size).to(device)
            check_weights(spec, mixer, *inputs[:3])
            attentions[spec] = mixer
        calls = {
            (name, what): call
            for name, attention in attentions.items()
            for what, call in attention_calls(attention, inputs).items()
        }
        times = interleave_calls(calls, repeats)
        yield [_point(key, size, times[key], call) for key, call in calls.items()]


def _point(key: tuple[str, str], size: Size, times: Stats, call: Callable[[], Any]) -> Point:
    return Point(*key, size.tokens, times.median, times.low, times.high, peak_bytes(call))


def ratios(points: Sequence[Point], curve: str, base: str = SDPA) -> dict[str, dict[int, float]]:
    """mixer -> tokens -> value of `base` / value of the mixer. Above 1, the mixer needs less time or memory."""
    what, field = CURVES[curve]
    values = {(point.mixer, point.tokens): float(getattr(point, field)) for point in points if point.what == what}
    found: dict[str, dict[int, float]] = {}
    for (mixer, tokens), value in values.items():
        if mixer != base:
            found.setdefault(mixer, {})[tokens] = values[base, tokens] / value
    return found


def crossings(points: Sequence[Point]) -> list[Crossing]:
    """N* of each linear mixer relative to SDPA, for each curve."""
    return [
        Crossing(mixer, curve, *crossing(list(by_tokens), list(by_tokens.values())))
        for curve in CURVES
        for mixer, by_tokens in ratios(points, curve).items()
        if mixer != SOFTMAX
    ]


def crossing(tokens: Sequence[int], ratio: Sequence[float]) -> tuple[float | None, bool]:
    """(N*, whether the mixer wins on the whole grid), as in `Crossing`. N* is interpolated in log-log coordinates."""
    curve = isotonic([math.log(value) for value in ratio])
    if curve[-1] < 0:
        return None, False
    if curve[0] >= 0:
        return float(tokens[0]), True
    for (n, y), (next_n, next_y) in pairwise(zip(tokens, curve, strict=True)):
        if next_y >= 0:
            return n * (next_n / n) ** (-y / (next_y - y)), False
    raise AssertionError("a curve that starts below 0 and ends at or above it has a zero")


def isotonic(values: Sequence[float]) -> list[float]:
    """The non-decreasing sequence with the least squared distance (pool adjacent violators).

    The ratio should not fall with more tokens, so a decrease is noise. With the fit, one slow repetition moves N* only
    a little.
    """
    groups: list[tuple[float, int]] = []
    for value in values:
        groups.append((value, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            later, later_count = groups.pop()
            earlier, earlier_count = groups.pop()
            count = later_count + earlier_count
            groups.append(((later * later_count + earlier * earlier_count) / count, count))
    return [value for value, count in groups for _ in range(count)]


def advice(points: Sequence[Point], image: int, patch: int, tokens: int) -> str:
    """One sentence: which attention to train with at this token count, compared with the faster of SDPA and our
    softmax.
    """
    place = f"at {image}x{image} with patch {patch} ({tokens} tokens)"
    best = _faster_softmax(points)
    speedups = {mixer: by_tokens for mixer, by_tokens in ratios(best, "training", SDPA).items() if mixer != SOFTMAX}
    mixer = max(speedups, key=lambda name: speedups[name][tokens])
    ratio = speedups[mixer][tokens]
    found, always = crossing(list(speedups[mixer]), list(speedups[mixer].values()))
    if ratio < 1:
        pays = "it is slower at all measured counts" if found is None else f"it pays from about {found:.0f} tokens on"
        slower = f"{mixer}, the fastest other mixer, trains at {ratio:.2f}x the speed of softmax"
        return f"{place} keep softmax: {slower}; {pays}"
    if found is None:  # faster at this count, but not in the fit over all counts
        below = "keep softmax at fewer tokens"
    elif always:
        below = f"it is no slower at any measured count from {found:.0f} tokens on"
    else:
        below = f"keep softmax below {found:.0f} tokens"
    whole = "a whole model gains less, measure it with: favorit bench speed --preset"
    return f"{place} {mixer} attention trains {ratio:.1f}x faster than the faster of SDPA and softmax; {below}; {whole}"


def _faster_softmax(points: Sequence[Point]) -> list[Point]:
    """The points, with SDPA replaced by our softmax at the counts where ours is faster."""
    ours = {(point.what, point.tokens): point for point in points if point.mixer == SOFTMAX}
    faster = (
        min(point, ours[point.what, point.tokens], key=lambda p: p.median) for point in points if point.mixer == SDPA
    )
    return [*(replace(point, mixer=SDPA) for point in faster), *(point for point in points if point.mixer != SDPA)]
