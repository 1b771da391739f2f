"""The table of `favorit bench peers`: each comparison is checked for equality, then timed.

Both sides run interleaved in separate processes. Our command line tells glibc to keep large buffers and OpenMP to spin
less; other programs do not. Therefore each side is timed in two processes: with the default settings and with ours.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from favorit import measure
from favorit.bench.peers.comparison import TOLERANCES, Agreement, Comparison, Mode, Sizes
from favorit.bench.peers.worker import COMPARISONS
from favorit.bench.spread import Ratio, ratio
from favorit.bench.timed_process import WorkerError, interleave_processes, single_reply
from favorit.bench.timing import measure_limits_around
from favorit.errors import FavoritError, unknown
from favorit.process import default_environment, worker_settings

WORKER = "favorit.bench.peers.worker"
MAIN_PAIR = ("peer default", "ours tuned")
# Packages outside the extra: vit-pytorch requires torchvision, which its ViT does not use.
INSTALL = {"vit_pytorch": "pip install --no-deps vit-pytorch (and einops)"}
EXTRA = "pip install 'favorit[peers]'"


@dataclass(frozen=True)
class Row:
    """One comparison in one mode. Times are milliseconds (median, quartiles), None if not timed; `check` says why.

    `ratio` is peer time / our time, the peer with default settings and ours with our settings. `ratio_tuned` has our
    settings on both sides, `ratio_default` the default settings on both. `gemm_share` is our share of the fp32
    matrix-product limit, None in bf16. `cache_penalty` is the mean of `measure.cache_penalty` before and after. Epoch
    times are extrapolated, in seconds.
    """

    case: str
    ours: str
    peer: str
    check: str
    mode: Mode = "eager"
    ours_ms: float | None = None
    ours_low: float | None = None
    ours_high: float | None = None
    peer_ms: float | None = None
    peer_low: float | None = None
    peer_high: float | None = None
    ratio: Ratio | None = None
    ratio_tuned: Ratio | None = None
    ratio_default: Ratio | None = None
    gemm_share: float | None = None
    cache_penalty: float | None = None
    ours_epoch: float | None = None
    peer_epoch: float | None = None


def columns(row: Row) -> dict[str, Any]:
    """The row of a CSV file: each ratio with its spread, and their number of rounds."""
    found: dict[str, Any] = {}
    for name, value in asdict(row).items():
        spread = getattr(row, name)
        found |= spread.fields(name) if isinstance(spread, Ratio) else {name: value}
    return {**found, "rounds": None if row.ratio is None else row.ratio.rounds}


def select(case: str, only: str = "", m: int = Sizes.m) -> list[str]:
    """The keys of the comparisons of a case, or of `all` cases, whose name "ours / peer" contains the text `only`."""
    cases = {comparison.case for comparison in COMPARISONS.values()}
    if case != "all" and case not in cases:
        raise unknown("case", case, [*cases, "all"])
    names = {
        key: f"{comparison.name.format(m=m)} / {comparison.peer}"
        for key, comparison in COMPARISONS.items()
        if case in ("all", comparison.case)
    }
    keys = [key for key, name in names.items() if only in name]
    if not keys:
        raise FavoritError(
            f"--only {only!r} matches no comparison of {case}: {'; '.join(dict.fromkeys(names.values()))}"
        )
    return keys


def measure_rows(keys: list[str], sizes: Sizes, *, repeats: int, modes: Sequence[Mode] = ("eager",)) -> Iterator[Row]:
    """Yields a row for each comparison and mode. If the eager mode is not timed, the other modes are skipped."""
    for key in keys:
        for mode in modes:
            row = _measure(COMPARISONS[key], sizes, repeats, mode)
            yield row
            if mode == "eager" and row.ours_ms is None:  # the tolerance of bf16 would hide an fp32 difference
                break


def _measure(comparison: Comparison, sizes: Sizes, repeats: int, mode: Mode) -> Row:
    labels: dict[str, Any] = dict(
        case=comparison.case, ours=comparison.name.format(m=sizes.m), peer=comparison.peer, mode=mode
    )
    if comparison.package is not None and importlib.util.find_spec(comparison.package) is None:
        return Row(**labels, check=f"not installed: {INSTALL.get(comparison.package, EXTRA)}")

    def request(side: str) -> dict[str, Any]:
        return {
            "comparison": comparison.key,
            "sizes": asdict(sizes),
            "side": side,
            "mode": "eager" if side == "theirs" else mode,
        }

    try:
        agreement = Agreement(**single_reply(WORKER, request("check")))
        may_time, verdict = judge(agreement, sizes, measure.free_memory(), TOLERANCES[mode])
        if not may_time:
            return Row(**labels, check=verdict)
        default = default_environment()
        tuned = {**default, **worker_settings()}
        processes = {
            "peer default": (request("theirs"), default),
            "ours tuned": (request("ours"), tuned),
            "peer tuned": (request("theirs"), tuned),
            "ours default": (request("ours"), default),
        }
        times, limit, cache_penalty = measure_limits_around(
            lambda: interleave_processes(WORKER, processes, repeats, [MAIN_PAIR])
        )
    except WorkerError as error:
        return Row(**labels, check=f"failed: {error}")
    peer, ours = (times[name] for name in MAIN_PAIR)
    steps = None if comparison.epoch_images is None else ceil(comparison.epoch_images / sizes.batch)
    return Row(
        **labels,
        check=verdict,
        ours_ms=ours.median,
        ours_low=ours.low,
        ours_high=ours.high,
        peer_ms=peer.median,
        peer_low=peer.low,
        peer_high=peer.high,
        ratio=ratio(peer.values, ours.values),
        ratio_tuned=ratio(times["peer tuned"].values, ours.values),
        ratio_default=ratio(peer.values, times["ours default"].values),
        gemm_share=None if mode == "bf16" else 1e3 * agreement.flops / ours.median / limit,
        cache_penalty=cache_penalty,
        ours_epoch=steps and steps * ours.median / 1e3,
        peer_epoch=steps and steps * peer.median / 1e3,
    )


def judge(
    agreement: Agreement, sizes: Sizes, free: int | None, tolerance: float = TOLERANCES["eager"]
) -> tuple[bool, str]:
    """True if the two sides may be timed, and the text of `check`."""
    difference, with_extras = agreement.difference, agreement.difference_with_extras
    if difference is not None and not difference < tolerance:
        return False, f"differs by {difference:.1e}: no speed is reported"
    needed = 2 * agreement.bytes_per_image * sizes.batch  # each side runs in two processes at once
    if free is not None and needed > free:
        fits = int(free / (2 * agreement.bytes_per_image))
        return (
            False,
            f"too large: needs {needed / 2**30:.1f} GiB and {free / 2**30:.1f} are free: at most --batch {fits}",
        )
    if difference is None:
        return True, "different mathematics: only the cost is compared"
    verdict = f"equal to {difference:.0e}" if difference else "equal bit for bit"
    if with_extras is not None and with_extras >= tolerance:
        verdict += f" without its epsilon, which changes it by {with_extras:.1%}"
    return True, verdict
