"""Statistics of the attention of one layer, from the q, k, v of its mixer.

    logit_bound         |q_i| |k_j| / sqrt(D) >= |logit|: mean over pairs, and the 95 % quantile within an image
    entropy             of the softmax weights / entropy of uniform weights
    rank                effective rank of the weights: exp of the entropy of their normalized singular values
    error               |w v - s v|_F / |s v|_F, s the softmax weights of the same q and k
    effective_features  exp of the entropy of the normalized |phi(q_i)_m z_m| over m, z = sum_j phi(k_j)

Shapes: B images, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from favorit.attention import Attention, Kernel, Linear, Mixer, build_mixer
from favorit.attention.dtypes import full_precision
from favorit.attention.stability import TINY, or_zero
from favorit.bench.approximation import UNIFORM, distance
from favorit.errors import FavoritError, check_positive
from favorit.spec import Spec, parse

OWN = "own"
SWEPT = "favor"
OTHERS = ("relu", "elu", "exp")
DRAWS = 5
# Attention weights in a block of images: larger batches are split into blocks.
BLOCK_ELEMENTS = 1 << 23
# Budget for singular values: they are computed for the first RANK_WORK / (H N^3) images, at least one.
RANK_WORK = 1 << 31


@dataclass(frozen=True)
class Finding:
    """The statistics of one head, or of all heads of a layer together (`head` is None).

    Layers and heads are numbered from 1.

    `errors` has uniform averaging, the layer's own mixer and each kernel that was tried. `own_rank` and `own_distance`
    describe the weights of the layer's own mixer; `own_distance` is their total variation distance from uniform
    weights. `query_independent` is the share of tested images (the first of each block) whose weights are the same for
    q and -q. Only linear mixers have
    `features`, `effective_features` and `vanished`. `vanished` is the share of rows where all features vanish and the
    mixer falls back to uniform averaging.
    """

    layer: int
    head: int | None
    mixer: str
    tokens: int
    head_dim: int
    q_norm: float
    k_norm: float
    logit_bound: float
    logit_bound_95: float
    entropy: float
    rank: float
    own_rank: float
    own_distance: float
    query_independent: float
    errors: dict[str, float]
    features: int | None = None
    effective_features: float | None = None
    vanished: float | None = None

    def row(self) -> dict[str, Any]:
        """One row of a table."""
        plain = {name: "" if value is None else value for name, value in asdict(self).items() if name != "errors"}
        return {**plain, "head": self.head or "all", **{f"error {name}": error for name, error in self.errors.items()}}


class LayerStats:
    """Accumulates the statistics of one layer over batches of images."""

    def __init__(self, layer: int, name: str, attention: Attention, counts: Sequence[int]) -> None:
        if not counts:
            raise FavoritError(f"nothing to try: give at least one m for {SWEPT}")
        for count in counts:
            check_positive(m=count)
        self.layer, self.name = layer, name
        self.mixer, self.head_dim = attention.mixer, attention.head_dim
        self.tokens = self.ranked_images = 0
        self.softmax, self.uniform = self._build(Spec("softmax"), 0), self._build(Spec(UNIFORM), 0)
        swept = (Spec(SWEPT, (), {"m": count}) for count in sorted(counts))
        self.others = {str(spec): [self._build(spec, seed) for seed in range(DRAWS)] for spec in swept}
        self.others |= {name: [self._build(parse(name), 0)] for name in OTHERS}
        self.values: dict[str, list[Tensor]] = defaultdict(list)
        self.squares: dict[str, list[Tensor]] = defaultdict(list)

    def _build(self, spec: Spec, seed: int) -> Mixer:
        full = Spec(spec.name, (), {**spec.kwargs, "causal": self.mixer.causal})
        return build_mixer(full, heads=1, head_dim=self.head_dim, layer=self.layer, seed=seed)

    @torch.no_grad()
    def add(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Adds a batch: q, k, v (B,H,N,D), the inputs of the mixer."""
        self.tokens = k.shape[-2]
        size = max(1, BLOCK_ELEMENTS // (q.shape[1] * q.shape[2] * k.shape[2]))
        for block in zip(*(x.split(size) for x in (q, k, v)), strict=True):
            with full_precision(*block) as (q, k, v):
                self._add_block(q, k, v)

    def _add_block(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        exact, uniform, own = (mixer.weights(q, k) for mixer in (self.softmax, self.uniform, self.mixer))
        bounds = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :] / math.sqrt(self.head_dim)
        quantile_rank = max(1, math.ceil(0.95 * bounds[0, 0].numel()))
        self._append(
            q_norm=q.norm(dim=-1).mean(-1),
            k_norm=k.norm(dim=-1).mean(-1),
            logit_bound=bounds.mean((-1, -2)),
            logit_bound_95=bounds.flatten(2).kthvalue(quantile_rank, -1).values,
            entropy=_entropy(exact).mean(-1) / _entropy(uniform).mean(-1).clamp(min=TINY),
            own_distance=distance(own, uniform),
            query_independent=(self.mixer.weights(-q[:1], k[:1]) == own[:1]).all(-1).all(-1).float(),
        )
        remaining = max(1, RANK_WORK // (q.shape[1] * self.tokens**3)) - self.ranked_images
        if remaining > 0:
            self._append(rank=_effective_rank(exact[:remaining]), own_rank=_effective_rank(own[:remaining]))
            self.ranked_images += min(remaining, len(q))
        if isinstance(self.mixer, Linear):
            self._append(**_feature_stats(self.mixer.kernel, q, k))
        out = exact @ v
        self.squares[""].append(_square(out))
        for name, mixers in {UNIFORM: [self.uniform], OWN: [self.mixer], **self.others}.items():
            # Call `forward`: calling the module would run the hook that records q, k and v again.
            self.squares[name].append(torch.stack([_square(mixer.forward(q, k, v) - out) for mixer in mixers], -1))

    def _append(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.values[name].append(value)

    def findings(self) -> list[Finding]:
        """The finding of the layer, then those of its heads. Errors are medians over the draws of random features."""
        means = {name: torch.cat(values).mean(0) for name, values in self.values.items()}
        squares = {name: torch.cat(values).sum(0) for name, values in self.squares.items()}
        features = self.mixer.kernel.features if isinstance(self.mixer, Linear) else None
        found = []
        for head in (None, *range(len(squares[""]))):
            selected = slice(None) if head is None else slice(head, head + 1)
            total = squares[""][selected].sum().clamp(min=TINY)
            values: dict[str, Any] = {name: mean[selected].mean().item() for name, mean in means.items()}
            errors = {
                name: (square[selected].sum(0) / total).sqrt().median().item()
                for name, square in squares.items()
                if name
            }
            found.append(
                Finding(
                    layer=self.layer,
                    head=None if head is None else head + 1,
                    mixer=self.name,
                    tokens=self.tokens,
                    head_dim=self.head_dim,
                    features=features,
                    errors=errors,
                    **values,
                )
            )
        return found


def _feature_stats(kernel: Kernel, q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """The mean effective number of features in a row, and the share of rows where all features vanish."""
    phi_q, (phi_k, r) = kernel.queries(q), kernel.keys(k)
    r = or_zero(r, phi_k)
    scale = torch.exp(r - r.amax(-2, keepdim=True))
    share = (phi_q * (scale.mT @ phi_k / k.shape[-2])).abs()  # features may be signed
    total = share.sum(-1, keepdim=True)
    return {
        "effective_features": _entropy(share / total.clamp(min=TINY)).exp().mean(-1),
        "vanished": (total <= TINY).float().mean((-1, -2)),
    }


def _entropy(p: Tensor) -> Tensor:
    """-sum p log p over the last axis."""
    return torch.special.entr(p).sum(-1)


def _effective_rank(w: Tensor) -> Tensor:
    """(B,H,N,N) -> (B,H)."""
    values = torch.linalg.svdvals(w)
    return _entropy(values / values.sum(-1, keepdim=True)).exp()


def _square(x: Tensor) -> Tensor:
    return x.square().sum((-1, -2))
