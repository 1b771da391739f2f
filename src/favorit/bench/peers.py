"""Ours against other libraries, each in a process of its own with its own defaults, in turn; equal outputs first, then
times.

Our command line tells glibc to keep large buffers and OpenMP to spin less; other programs do not. So four are timed:
the peer with default settings against ours as our command runs it, and both again with the settings of the other.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from favorit import measure
from favorit.bench.alternate import ContenderError, ask, take_turns
from favorit.bench.comparison import TOLERANCES, Agreement, Comparison, Sizes, Way
from favorit.bench.contender import COMPARISONS
from favorit.bench.spread import beside_limits
from favorit.errors import FavoritError, unknown
from favorit.process import as_shipped, worker_settings

# Those that the extra does not bring: vit-pytorch requires torchvision, of which its ViT uses nothing.
INSTALL = {"vit_pytorch": "pip install --no-deps vit-pytorch (and einops)"}
EXTRA = "pip install 'favorit[peers]'"


@dataclass(frozen=True)
class Row:
    """One comparison. Times are milliseconds (median, quartiles) and None where none is reported, which `check`
    explains.

    `ratio` is the peer with default settings over ours as our command runs it; `ratio_kept` with our process settings
    on both sides; `ratio_plain` with default settings on both. `gemm_share` is ours over the matrix-product limit,
    which is one of fp32 and says nothing of bf16; `handing_over` is what threads paid for each other's numbers around
    that time; epochs are extrapolated, in seconds.
    """

    case: str
    ours: str
    peer: str
    check: str
    way: Way = "eager"
    ours_ms: float | None = None
    ours_low: float | None = None
    ours_high: float | None = None
    peer_ms: float | None = None
    peer_low: float | None = None
    peer_high: float | None = None
    ratio: float | None = None
    ratio_kept: float | None = None
    ratio_plain: float | None = None
    gemm_share: float | None = None
    handing_over: float | None = None
    ours_epoch: float | None = None
    peer_epoch: float | None = None


def chosen(case: str, only: str = "", m: int = Sizes.m) -> list[str]:
    """The comparisons of a case, by key, that have the words `only` in what is ours or in the peer's name; `all` is
    every case.
    """
    cases = {comparison.case for comparison in COMPARISONS.values()}
    if case != "all" and case not in cases:
        raise unknown("case", case, [*cases, "all"])
    of_case = {key: f"{it.name.format(m=m)} / {it.peer}" for key, it in COMPARISONS.items() if case in ("all", it.case)}
    if not (keys := [key for key, name in of_case.items() if only in name]):
        raise FavoritError(
            f"--only {only!r} is in no comparison of {case}: there are {'; '.join(dict.fromkeys(of_case.values()))}"
        )
    return keys


def compare(
    keys: list[str],
    sizes: Sizes,
    *,
    repeats: int,
    ways: Sequence[Way] = ("eager",),
) -> Iterator[Row]:
    """A row for each comparison and each way in which ours is run. What is not timed as it comes is not timed in
    another way either.
    """
    for key in keys:
        for way in ways:
            row = _row(COMPARISONS[key], sizes, repeats, way)
            yield row
            if way == "eager" and row.ours_ms is None:  # bf16 would forgive what differs in fp32
                break


def _row(comparison: Comparison, sizes: Sizes, repeats: int, way: Way) -> Row:
    about: dict[str, Any] = dict(
        case=comparison.case, ours=comparison.name.format(m=sizes.m), peer=comparison.peer, way=way
    )
    if comparison.package is not None and importlib.util.find_spec(comparison.package) is None:
        return Row(**about, check=f"absent: {INSTALL.get(comparison.package, EXTRA)}")

    def request(side: str) -> dict[str, Any]:
        return {
            "comparison": comparison.key,
            "sizes": asdict(sizes),
            "side": side,
            "way": "eager" if side == "theirs" else way,
        }

    try:
        found = Agreement(**ask(request("check")))
        agrees, verdict = judge(found, sizes, measure.free_memory(), TOLERANCES[way])
        if not agrees:
            return Row(**about, check=verdict)
        shipped = as_shipped()
        ours_settings = {**shipped, **worker_settings()}
        cells = {
            "peer": (request("theirs"), shipped),
            "ours kept": (request("ours"), ours_settings),
            "peer kept": (request("theirs"), ours_settings),
            "ours": (request("ours"), shipped),
        }
        times, limit, handing_over = beside_limits(lambda: take_turns(cells, repeats))
    except ContenderError as error:
        return Row(**about, check=f"failed: {error}")
    ours, peer = times["ours kept"], times["peer"]
    steps = None if comparison.epoch is None else ceil(comparison.epoch / sizes.batch)
    return Row(
        **about,
        check=verdict,
        ours_ms=ours.median,
        ours_low=ours.low,
        ours_high=ours.high,
        peer_ms=peer.median,
        peer_low=peer.low,
        peer_high=peer.high,
        ratio=peer.median / ours.median,
        ratio_kept=times["peer kept"].median / ours.median,
        ratio_plain=peer.median / times["ours"].median,
        gemm_share=None if way == "bf16" else 1e3 * found.flops / ours.median / limit,
        handing_over=handing_over,
        ours_epoch=steps and steps * ours.median / 1e3,
        peer_epoch=steps and steps * peer.median / 1e3,
    )


def judge(found: Agreement, sizes: Sizes, free: int | None, tolerance: float = TOLERANCES["eager"]) -> tuple[bool, str]:
    """Whether the two sides may be timed, and what to say of it. All four processes are there at once."""
    if found.difference is not None and not found.difference < tolerance:
        return False, f"differs by {found.difference:.1e}: no speed is reported"
    needed = 2 * found.bytes_of_image * sizes.batch
    if free is not None and needed > free:
        most = int(free / (2 * found.bytes_of_image))
        return (
            False,
            f"too large: needs {needed / 2**30:.1f} GiB and {free / 2**30:.1f} are free: at most --batch {most}",
        )
    if found.difference is None:
        return True, "other mathematics: the cost alone is compared"
    verdict = f"equal to {found.difference:.0e}" if found.difference else "equal bit for bit"
    if found.as_it_is is not None and found.as_it_is >= tolerance:
        verdict += f" without its epsilon, which moves it by {found.as_it_is:.1%}"
    return True, verdict
