"""The token count N* from which linear attention needs less time, or less memory, than torch's fused softmax (SDPA).

ratio(N) = SDPA(N) / mixer(N)       above 1 the mixer wins
N*       = zero of the isotonic (non-decreasing least-squares) fit of log ratio as a function of log N

The range of N* has the zeros of the fits to the upper and to the lower ends of the intervals of the ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from favorit.bench.spread import Ratio, ratio
from favorit.bench.sweep import sweep
from favorit.bench.timing import describe, interleave_calls
from favorit.errors import FavoritError

SDPA, SOFTMAX = "SDPA", "softmax"
GRID = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
MIN_SPACING = 1.1
MAX_TOKENS = 1024  # of the default grid
MIN_PATCH = 8
# curve -> (the timed call, whether its memory is compared instead of its time)
CURVES = {
    "forward": (FORWARD, False),
    "training": (TRAINING, False),
    "forward memory": (FORWARD, True),
    "training memory": (TRAINING, True),
}


@dataclass(frozen=True)
class Point:
    """One timed call (`what`) at one token count.

    `median` and quartiles are milliseconds, `rounds` the milliseconds of each round. `memory` is the peak in bytes.
    """

    mixer: str
    what: str
    tokens: int
    median: float
    low: float
    high: float
    memory: int
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class Crossing:
    """N* (`tokens`) of one mixer on one curve, and its range from `low` to `high`.

    `tokens` is None if the mixer never wins on the grid. It is the first count of the grid if the mixer always wins
    (`always`). In the same way `low` and `high` are None above the grid and the first count of the grid below it.
    """

    mixer: str
    curve: str
    tokens: float | None
    always: bool = False
    low: float | None = None
    high: float | None = None


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


def check_device(device: str) -> None:
    """Raises an error for a device that torch does not know or that this machine does not have."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise FavoritError(f"device={device} is not available: write cpu, cuda or mps ({reason})") from None


def measure_points(
    mixers: Sequence[str],
    tokens: Sequence[int],
    *,
    batch: int,
    heads: int,
    head_dim: int,
    repeats: int,
    device: str = "cpu",
    listen: Callable[[int, int], None] = lambda done, total: None,
) -> list[Point]:
    """The points of each token count: SDPA called directly, our softmax and the mixers, timed interleaved.

    Disturbed token counts are measured again, see `sweep`. `listen(done, total)` is called with sums of tokens.
    """
    linear = [spec for spec in dict.fromkeys(mixers) if spec != SOFTMAX]
    if not linear:
        raise FavoritError("crossover: give a mixer other than softmax, such as 'relu(m=64)'")
    check_device(device)
    specs = [SOFTMAX, *linear]
    sizes = {count: Size(batch, heads, count, head_dim) for count in sorted(set(tokens))}
    for spec in specs:
        check_memory(spec, sizes[max(sizes)])
    memory: dict[tuple[tuple[str, str], int], int] = {}

    def visit(count: int, rounds: int) -> dict[tuple[str, str], tuple[float, ...]]:
        calls = _calls(specs, sizes[count], device)
        times = interleave_calls(calls, rounds)
        for key, call in calls.items():
            if (key, count) not in memory:
                memory[key, count] = peak_bytes(call)
        return {key: stats.values for key, stats in times.items()}

    pairs = [((SDPA, what), (spec, what)) for spec in linear for what in (FORWARD, TRAINING)]
    return [
        _point(key, count, rounds, memory[key, count])
        for count, times in sweep(visit, list(sizes), repeats, pairs, listen).items()
        for key, rounds in times.items()
    ]


def _calls(specs: Sequence[str], size: Size, device: str) -> dict[tuple[str, str], Callable[[], Any]]:
    """The timed calls of SDPA and of the mixers at one size. Each mixer is checked with `check_weights`."""
    inputs = make_inputs(size, device)
    attentions: dict[str, AttentionFn] = {SDPA: Fused()}
    for spec in specs:
        mixer = build(spec, size).to(device)
        check_weights(spec, mixer, *inputs[:3])
        attentions[spec] = mixer
    return {
        (name, what): call
        for name, attention in attentions.items()
        for what, call in attention_calls(attention, inputs).items()
    }


def _point(key: tuple[str, str], tokens: int, rounds: Sequence[float], memory: int) -> Point:
    times = describe(rounds)
    return Point(*key, tokens, times.median, times.low, times.high, memory, times.values)


def ratios(points: Sequence[Point], curve: str, base: str = SDPA) -> dict[str, dict[int, Ratio]]:
    """mixer -> tokens -> value of `base` / value of the mixer. Above 1, the mixer needs less time or memory."""
    what, is_memory = CURVES[curve]
    values = {
        (point.mixer, point.tokens): [point.memory] if is_memory else point.rounds
        for point in points
        if point.what == what
    }
    found: dict[str, dict[int, Ratio]] = {}
    for (mixer, tokens), value in values.items():
        if mixer != base:
            found.setdefault(mixer, {})[tokens] = ratio(values[base, tokens], value)
    return found


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The points as rows of a CSV file: the number of rounds, and the ratio of times SDPA / mixer with its spread."""
    found = {what: ratios(points, curve) for curve, (what, is_memory) in CURVES.items() if not is_memory}
    return [
        {
            **asdict(point),
            "rounds": len(point.rounds),
            **(found[point.what][point.mixer][point.tokens].fields() if point.mixer != SDPA else {}),
        }
        for point in points
    ]


def crossings(points: Sequence[Point]) -> list[Crossing]:
    """N* of each linear mixer relative to SDPA, for each curve."""
    return [
        find_crossing(mixer, curve, by_tokens)
        for curve in CURVES
        for mixer, by_tokens in ratios(points, curve).items()
        if mixer != SOFTMAX
    ]


def find_crossing(mixer: str, curve: str, by_tokens: Mapping[int, Ratio]) -> Crossing:
    """N* and its range, from the ratio at each token count."""
    tokens = list(by_tokens)
    found, always = crossing(tokens, [each.value for each in by_tokens.values()])
    low, _ = crossing(tokens, [each.high for each in by_tokens.values()])
    high, _ = crossing(tokens, [each.low for each in by_tokens.values()])
    return Crossing(mixer, curve, found, always, low, high)


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
