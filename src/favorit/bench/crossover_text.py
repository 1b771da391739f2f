"""The results of `favorit bench crossover` in words: each crossing with its range, disturbed points, and the advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from favorit.bench.crossover import CURVES, SDPA, SOFTMAX, Crossing, Point, find_crossing, ratios
from favorit.bench.spread import MIN_ROUNDS, describe_undecided


def describe_crossing(found: Crossing, grid: Sequence[int]) -> str:
    """N* and its range, such as '148 (120 to 180)'; or that the mixer never or always wins on the grid."""
    first, last = grid[0], grid[-1]
    if found.low is None:
        return f"never up to {last}"
    if found.high == first:
        return f"always from {first}"
    low = f"below {first}" if found.low == first else f"{found.low:.0f}"
    high = f"above {last}" if found.high is None else f"{found.high:.0f}"
    if found.tokens is None or found.always:
        return f"undecided ({low} to {high})"
    exact = f"{found.tokens:.0f}"
    return exact if low == high == exact else f"{exact} ({low} to {high})"


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
    where = describe_crossing(crossing, list(speedups[mixer]))
    amount = ratio.text if ratio.is_decided else f"{ratio.range} times"
    rerun = "" if ratio.is_decided else "; the spread is wide: measure again on a quiet machine or with more --repeats"
    if ratio.low <= 1 <= ratio.high and not ratio.is_decided:
        return f"{place} undecided: {mixer}, the fastest other mixer, trains at {amount} the speed of softmax{rerun}"
    if ratio.low <= 1:
        pays = "it is slower at all measured counts" if crossing.tokens is None else f"it pays from {where} tokens on"
        slower = f"{mixer}, the fastest other mixer, trains at {amount} the speed of softmax"
        return f"{place} keep softmax: {slower}; {pays}{rerun}"
    if crossing.tokens is None:  # faster at this count, but not in the fit over all counts
        below = "keep softmax at fewer tokens"
    elif crossing.always:
        below = f"it is no slower at any measured count from {crossing.tokens:.0f} tokens on"
    else:
        below = f"keep softmax below {where} tokens"
    whole = "a whole model gains less, measure it with: favorit bench speed --preset"
    faster = f"{mixer} attention trains {amount} faster than the faster of SDPA and softmax"
    return f"{place} {faster}; {below}; {whole}{rerun}"


def _faster_softmax(points: Sequence[Point]) -> list[Point]:
    """The points, with SDPA replaced by our softmax at the counts where ours is faster."""
    ours = {(point.what, point.tokens): point for point in points if point.mixer == SOFTMAX}
    faster = (
        min(point, ours[point.what, point.tokens], key=lambda p: p.median) for point in points if point.mixer == SDPA
    )
    return [*(replace(point, mixer=SDPA) for point in faster), *(point for point in points if point.mixer != SDPA)]
