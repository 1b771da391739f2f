"""The results of `favorit bench crossover` in words: each crossing with its range, disturbed points, and the advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from favorit.bench.crossover import CURVES, SDPA, SOFTMAX, Crossing, Point, find_crossing, ratios
from favorit.bench.spread import MIN_ROUNDS, describe_undecided

# N* is undecided if the ends of its range differ by more than this factor.
WIDEST_RANGE = 4


def describe_crossing(found: Crossing, grid: Sequence[int]) -> str:
    """N* and its range, such as '148 (120 to 180)'; or that the mixer never or always wins on the grid, or that N* is
    undecided.
    """
    if found.low is None:
        return f"never up to {grid[-1]}"
    if found.high == grid[0]:
        return f"always from {grid[0]}"
    if is_undecided(found, grid):
        return f"undecided ({_range(found, grid)})"
    return f"{found.tokens:.0f}" + ("" if found.low == found.high else f" ({_range(found, grid)})")


def is_undecided(found: Crossing, grid: Sequence[int]) -> bool:
    """True if the range is wide, or if one end of it is on the grid and N* is not."""
    if found.low is None or found.high == grid[0]:
        return False
    return found.tokens is None or found.always or (found.high or grid[-1]) > WIDEST_RANGE * found.low


def _range(found: Crossing, grid: Sequence[int]) -> str:
    low = f"below {grid[0]}" if found.low == grid[0] else f"{found.low:.0f}"
    high = f"above {grid[-1]}" if found.high is None else f"{found.high:.0f}"
    return f"{low} to {high}"


def describe_disturbances(points: Sequence[Point], repeats: int) -> list[str]:
    """Lines that name the token counts that were measured again, and the number of ratios that remained undecided."""
    again = sorted({point.tokens for point in points if len(point.rounds) > max(repeats, MIN_ROUNDS)})
    measured = [
        each
        for curve, (_, is_memory) in CURVES.items()
        if not is_memory
        for mixer, by_tokens in ratios(points, curve).items()
        if mixer != SOFTMAX
        for each in by_tokens.values()
    ]
    lines = [f"measured again, because of noise or a jump: {', '.join(map(str, again))} tokens"] if again else []
    return lines + describe_undecided(measured, repeats)


def advice(points: Sequence[Point], image: int, patch: int, tokens: int) -> str:
    """One sentence: which attention to train with at this token count, compared with the faster of SDPA and our
    softmax.
    """
    place = f"at {image}x{image} with patch {patch} ({tokens} tokens)"
    best = _faster_softmax(points)
    speedups = {mixer: by_tokens for mixer, by_tokens in ratios(best, "training", SDPA).items() if mixer != SOFTMAX}
    mixer = max(speedups, key=lambda name: speedups[name][tokens].value)
    ratio = speedups[mixer][tokens]
    crossing = find_crossing(mixer, "training", speedups[mixer])
    amount = ratio.text if ratio.is_decided else f"{ratio.range} times"
    rerun = "" if ratio.is_decided else "; the spread is wide: measure again on a quiet machine or with more --repeats"
    if ratio.low <= 1 <= ratio.high and not ratio.is_decided:
        return f"{place} undecided: {mixer}, the fastest other mixer, trains at {amount} the speed of softmax{rerun}"
    is_slower = ratio.low <= 1
    where = _pays_where(crossing, list(speedups[mixer]), is_slower)
    if is_slower:
        slower = f"{mixer}, the fastest other mixer, trains at {amount} the speed of softmax"
        return f"{place} keep softmax: {slower}; {where}{rerun}"
    whole = "a whole model gains less, measure it with: favorit bench speed --preset"
    faster = f"{mixer} attention trains {amount} faster than the faster of SDPA and softmax"
    return f"{place} {faster}; {where}; {whole}{rerun}"


def _pays_where(found: Crossing, grid: Sequence[int], is_slower: bool) -> str:
    """A clause: from how many tokens on the mixer pays, given whether it is slower at the advised count."""
    count = describe_crossing(found, grid)
    if is_undecided(found, grid):
        return f"from how many tokens on it pays is {count}"
    if found.always:
        return f"it is no slower at any measured count from {grid[0]} tokens on"
    if found.tokens is None:  # it may be faster at the advised count, but not in the fit over all counts
        return "it is slower at all measured counts" if is_slower else "keep softmax at fewer tokens"
    return f"it pays from {count} tokens on" if is_slower else f"keep softmax below {count} tokens"


def _faster_softmax(points: Sequence[Point]) -> list[Point]:
    """The points, with SDPA replaced by our softmax at the counts where ours is faster."""
    ours = {(point.what, point.tokens): point for point in points if point.mixer == SOFTMAX}
    faster = (
        min(point, ours[point.what, point.tokens], key=lambda p: p.median) for point in points if point.mixer == SDPA
    )
    return [*(replace(point, mixer=SDPA) for point in faster), *(point for point in points if point.mixer != SDPA)]
