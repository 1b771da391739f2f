"""The approximation error of kernels relative to softmax attention, with uniform averaging as the baseline.

    error       |w v - s v|_F / |s v|_F, s the softmax weights
    distance    sum_j |w_ij - s_ij| / 2, averaged over rows i: total variation

q and k are normal with a given standard deviation, v is standard normal. Each draw has new q, k, v and random features.
Shapes: B images, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit import seeds
from favorit.attention import KERNELS, build_mixer
from favorit.attention.kernels.random_features import RandomRows
from favorit.bench.memory import check_fits
from favorit.bench.timing import describe
from favorit.errors import FavoritError, check_positive, unknown_component
from favorit.spec import PositiveInt, Registry, Spec, parse

Estimate = Callable[[Tensor, Tensor], Tensor]
"""q, k (B,H,N,D) -> weights (B,H,N,N). Each row may be scaled by any factor."""

# QK-norm starts with unit weights: the entries of q and k then have a mean square of 1.
QK_NORM_STD = 1.0
UNIFORM = "uniform"
# A kernel beats uniform averaging if its error is below this fraction of the error of uniform averaging. A smaller
# gain is not noticeable.
BETTER = 0.95
SERIES = (
    "favor",
    "favor(orthogonal=False)",
    "favor(features=hyperbolic)",
    "favor(features=hyperbolic, orthogonal=False)",
    "trigonometric",
    "trigonometric(orthogonal=False)",
    "relu",
    "elu",
    "gelu",
    "exp",
)
IMAGES = 8
# Below this range softmax equals averaging up to rounding; above it softmax selects one key.
MIN_STD, MAX_STD = 0.01, 100.0

# Kernels for this study only: their weights may be negative, so no mixer uses them.
SIGNED: Registry[Estimate] = Registry("kernel", context=("head_dim", "seed"))


@SIGNED.register("trigonometric")
def trigonometric(head_dim: int, seed: int, m: PositiveInt = 128, orthogonal: bool = True) -> Estimate:
    """phi(x) = [cos(W x~), sin(W x~)] exp(|x~|^2 / 2), x~ = x / D^(1/4). Signed; expectation as in FAVOR+."""
    if m % 2:
        raise FavoritError(f"trigonometric: m={m} is not valid: m must be even, because features come in pairs")
    rows = RandomRows(m // 2, head_dim, layer=0, seed=seed, orthogonal=orthogonal).rows

    def weights(q: Tensor, k: Tensor) -> Tensor:
        # Drop factors that are constant over a row: the query's, and the largest of the keys, which might overflow.
        r = k.square().sum(-1) / (2 * head_dim**0.5)
        phi_q, phi_k = (
            torch.cat([u.cos(), u.sin()], -1) for u in (F.linear(x * head_dim**-0.25, rows) for x in (q, k))
        )
        return phi_q @ phi_k.mT * torch.exp(r - r.amax(-1, keepdim=True))[..., None, :]

    return weights


@dataclass(frozen=True)
class Setting:
    """The settings of a measurement.

    q and k are drawn at each standard deviation in `stds`. A kernel that needs m and does not fix it is measured at
    each count in `m`. `draws` is the number of draws at each standard deviation.
    """

    head_dim: int = 64
    tokens: int = 128
    stds: tuple[float, ...] = (0.25, 0.5, 1.0)
    m: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    draws: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(head_dim=self.head_dim, tokens=self.tokens, draws=self.draws)
        for m in self.m:
            check_positive(m=m)
        for std in self.stds:
            if not MIN_STD <= std <= MAX_STD:
                raise FavoritError(f"std={std} is not valid: give a value between {MIN_STD:g} and {MAX_STD:g}")
        if not (self.stds and self.m):
            raise FavoritError("nothing to draw: give at least one std and one m")
        if self.tokens == 1:
            raise FavoritError("tokens=1 is not valid: a single token has nothing to attend to, give at least 2")


@dataclass(frozen=True)
class Point:
    """The result for one kernel at one m (None for kernels without m) and one std.

    `error` is the median error over the draws, `low` and `high` are the quartiles, `mean` and `deviation` the mean and
    standard deviation. `distance` and `lost` are means over the draws. `lost` is the share of rows whose weights do not
    sum to a positive value, which only happens with signed features.
    """

    kernel: str
    m: int | None
    std: float
    error: float
    low: float
    high: float
    mean: float
    deviation: float
    distance: float
    lost: float


def series(setting: Setting, kernels: Iterable[str]) -> list[tuple[str, Spec]]:
    """(text of the kernel, its spec) at each m, uniform averaging first. Raises an error for one that cannot be built
    or needs too much memory.
    """
    specs = [
        (UNIFORM, Spec(UNIFORM)),
        *((text, spec) for text in dict.fromkeys(kernels) for spec in _specs(text, setting.m)),
    ]
    max_features = max(spec.kwargs.get("m") or setting.head_dim for _, spec in specs)
    check_fits("tokens", setting.tokens, partial(_bytes, setting.head_dim, max_features))
    for _, spec in specs:
        _estimate(spec, setting.head_dim, seed=0)
    return specs


def approximate(
    setting: Setting, kernels: Iterable[str] = SERIES, *, listen: Callable[[int, int], None] | None = None
) -> list[Point]:
    """The points of all kernels at each std, uniform averaging first.

    `listen(done, total)` is called after each measurement.
    """
    specs = series(setting, kernels)
    found: dict[tuple[str, int | None, float], list[tuple[float, float, float]]] = defaultdict(list)
    total = len(specs) * len(setting.stds) * setting.draws
    for std, draw in ((std, draw) for std in setting.stds for draw in range(setting.draws)):
        q, k, v = _tensors(setting, std, draw)
        exact = build_mixer("softmax", heads=1, head_dim=setting.head_dim).weights(q, k)
        for text, spec in specs:
            raw = _estimate(spec, setting.head_dim, seeds.derive(setting.seed, "approximation", draw))(q, k)
            sums = raw.sum(-1, keepdim=True)
            w = raw / sums
            lost = 1 - (sums > 0).double().mean().item()
            found[text, spec.kwargs.get("m"), std].append(
                (output_error(w, exact, v), distance(w, exact).mean().item(), lost)
            )
            if listen is not None:
                listen(sum(map(len, found.values())), total)
    return [_point(key, values) for key, values in found.items()]


def output_error(w: Tensor, exact: Tensor, v: Tensor) -> float:
    """|w v - exact v|_F / |exact v|_F."""
    out = exact @ v
    return ((w @ v - out).norm() / out.norm()).item()


def distance(w: Tensor, exact: Tensor) -> Tensor:
    """(B,H,N,N), (B,H,N,N) -> (B,H): the total variation distance between rows, averaged over rows."""
    return (w - exact).abs().sum(-1).mean(-1) / 2


def conclude(points: Sequence[Point]) -> str:
    """One sentence. It states for each std the smallest m at which random features beat uniform averaging, and what to
    do where they do not.
    """
    usable = [point for point in points if parse(point.kernel).name in KERNELS]
    growing = [point for point in usable if point.m is not None and "m" not in parse(point.kernel).kwargs]
    if not usable:
        return "None of the measured kernels can be used in a mixer."
    won: list[str] = []
    lost: list[str] = []
    lost_at: list[float] = []
    for baseline in (point for point in points if point.kernel == UNIFORM):
        here = [point for point in growing or usable if point.std == baseline.std]
        better = [point for point in here if point.error < BETTER * baseline.error]
        # Show the fewest features that beat uniform averaging, or else the smallest error.
        shown = (
            min(better, key=lambda point: (point.m or 0, point.error))
            if better
            else min(here, key=lambda point: point.error)
        )
        at = f"at std {baseline.std:g}" + (f" from m={shown.m} on" if better and growing else "")
        if not better:
            lost_at.append(baseline.std)
        (won if better else lost).append(f"{at} ({shown.kernel} {shown.error:.2g}, uniform {baseline.error:.2g})")
    subject, limit = (
        ("Random features", f" up to m={max(point.m or 0 for point in growing)}") if growing else ("These kernels", "")
    )
    clauses = [f"{subject} beat uniform averaging {', '.join(won)}"] if won else []
    if lost:
        loses = "not" if won else f"{subject} do not beat uniform averaging"
        clauses.append(f"{loses} {', '.join(lost)}{limit}: {_remedy(lost_at)}")
    return f"{', but '.join(clauses)}."


def _remedy(stds: Sequence[float]) -> str:
    """What to do at stds where no kernel beats uniform averaging. QK-norm helps only if it shrinks q and k."""
    norm = f"model.qk_norm=True keeps their std near {QK_NORM_STD:g}; " if min(stds) > QK_NORM_STD else ""
    return f"keep softmax there, or shrink q and k for random features ({norm}narrower heads)"


def _specs(text: str, counts: Sequence[int]) -> list[Spec]:
    """The spec with each m of `counts`, or the spec alone if it fixes m or needs none."""
    spec = parse(text)
    registry: Registry = SIGNED if spec.name in SIGNED else KERNELS
    if spec.name not in registry:
        raise unknown_component("kernel", spec.name, [*KERNELS, *SIGNED])
    given, m = registry[spec.name].resolve(spec), registry[spec.name].parameters.get("m")
    if m is None or m.default is None or "m" in given:
        return [Spec(spec.name, (), given)]
    return [Spec(spec.name, (), {"m": count, **given}) for count in counts]


def _estimate(spec: Spec, head_dim: int, seed: int) -> Estimate:
    if spec.name in SIGNED:
        return SIGNED.build(spec, head_dim=head_dim, seed=seed)
    return build_mixer(spec, heads=1, head_dim=head_dim, seed=seed).weights


def _tensors(setting: Setting, std: float, draw: int) -> Iterator[Tensor]:
    """q, k, v of one draw. At another std, q and k are the same tensors times a factor."""
    generator = seeds.generator(setting.seed, "approximation", "tokens", draw)
    return (
        scale * torch.randn(IMAGES, 1, setting.tokens, setting.head_dim, generator=generator)
        for scale in (std, std, 1.0)
    )


def _point(key: tuple[str, int | None, float], values: list[tuple[float, float, float]]) -> Point:
    errors, distances, lost = zip(*values, strict=True)
    stats = describe(errors)
    return Point(
        *key,
        stats.median,
        stats.low,
        stats.high,
        stats.mean,
        stats.deviation,
        distance=fmean(distances),
        lost=fmean(lost),
    )


def _bytes(head_dim: int, m: int, tokens: int) -> int:
    """The estimated peak memory: several matrices of weights, q, k, v, the features, and the random rows, which are
    drawn in fp64.
    """
    return 4 * IMAGES * tokens * (6 * tokens + 8 * head_dim + 3 * m) + 8 * 4 * m * head_dim
