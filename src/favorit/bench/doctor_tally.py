"""The attention of one layer in numbers, from the q, k, v that its mixer gets.

    length      |q_i| |k_j| / sqrt(D), which bounds a logit: its mean over pairs, and the 95 % quantile of an image
    entropy     of the softmax weights, as a share of that of uniform ones
    rank        exp of the entropy of the singular values of the weights: how many directions they mix
    error       |w v - s v|_F / |s v|_F, s the softmax weights of the same q and k
    used        exp of the entropy of |phi(q_i)_m z_m| over m, z = sum_j phi(k_j): how many features carry a row of a
    linear mixer

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
from favorit.errors import FavoritError, positive
from favorit.spec import Spec, parse

OWN = "own"
SWEPT = "favor"
OTHERS = ("relu", "elu", "exp")
DRAWS = 5
# The weights of a block of images, in numbers; and for how many images singular values are worth waiting, as a sum of H
# N^3.
BLOCK_NUMBERS = 1 << 23
RANK_WORK = 1 << 31


@dataclass(frozen=True)
class Finding:
    """What one head does (None: all heads of the layer together); layers and heads are counted from 1.

    `errors` has uniform averaging, the layer's own mixer, and each kernel that was tried. `own_distance` is the total
    variation between its own rows and uniform ones. `blind` is the share of some images where its own weights do not
    depend on q. Only linear mixers have `features`, how many of them are `used`, and the share of rows where all have
    `vanished`, so that uniform steps in.
    """

    layer: int
    head: int | None
    mixer: str
    tokens: int
    head_dim: int
    q_norm: float
    k_norm: float
    length: float
    length_95: float
    entropy: float
    rank: float
    own_rank: float
    own_distance: float
    blind: float
    errors: dict[str, float]
    features: int | None = None
    used: float | None = None
    vanished: float | None = None

    def row(self) -> dict[str, Any]:
        """As one row of a table."""
        plain = {name: "" if value is None else value for name, value in asdict(self).items() if name != "errors"}
        return {**plain, "head": self.head or "all", **{f"error {name}": error for name, error in self.errors.items()}}


class Tally:
    """The numbers of one layer, summed over images as they come."""

    def __init__(self, layer: int, name: str, attention: Attention, counts: Sequence[int]) -> None:
        if not counts:
            raise FavoritError(f"there is nothing to try: give one m for {SWEPT} at least")
        for count in counts:
            positive(m=count)
        self.layer, self.name, self.mixer, self.head_dim = layer, name, attention.mixer, attention.head_dim
        self.tokens = self.ranked = 0
        self.softmax, self.uniform = self._build(Spec("softmax"), 0), self._build(Spec(UNIFORM), 0)
        swept = (Spec(SWEPT, (), {"m": count}) for count in sorted(counts))
        self.others = {str(spec): [self._build(spec, seed) for seed in range(DRAWS)] for spec in swept}
        self.others |= {name: [self._build(parse(name), 0)] for name in OTHERS}
        self.numbers: dict[str, list[Tensor]] = defaultdict(list)
        self.squares: dict[str, list[Tensor]] = defaultdict(list)

    def _build(self, spec: Spec, seed: int) -> Mixer:
        whole = Spec(spec.name, (), {**spec.kwargs, "causal": self.mixer.causal})
        return build_mixer(whole, heads=1, head_dim=self.head_dim, layer=self.layer, seed=seed)

    @torch.no_grad()
    def add(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """(B,H,N,D) each, as the mixer gets them."""
        self.tokens = k.shape[-2]
        size = max(1, BLOCK_NUMBERS // (q.shape[1] * q.shape[2] * k.shape[2]))
        for block in zip(*(x.split(size) for x in (q, k, v)), strict=True):
            with full_precision(*block) as (q, k, v):
                self._look(q, k, v)

    def _look(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        exact, uniform, own = (mixer.weights(q, k) for mixer in (self.softmax, self.uniform, self.mixer))
        lengths = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :] / math.sqrt(self.head_dim)
        last = max(1, math.ceil(0.95 * lengths[0, 0].numel()))
        self._keep(
            q_norm=q.norm(dim=-1).mean(-1),
            k_norm=k.norm(dim=-1).mean(-1),
            length=lengths.mean((-1, -2)),
            length_95=lengths.flatten(2).kthvalue(last, -1).values,
            entropy=_entropy(exact).mean(-1) / _entropy(uniform).mean(-1).clamp(min=TINY),
            own_distance=distance(own, uniform),
            blind=(self.mixer.weights(-q[:1], k[:1]) == own[:1]).all(-1).all(-1).float(),
        )
        room = max(1, RANK_WORK // (q.shape[1] * self.tokens**3)) - self.ranked
        if room > 0:
            self._keep(rank=_rank(exact[:room]), own_rank=_rank(own[:room]))
            self.ranked += min(room, len(q))
        if isinstance(self.mixer, Linear):
            self._keep(**_features(self.mixer.kernel, q, k))
        out = exact @ v
        self.squares[""].append(_square(out))
        for name, mixers in {UNIFORM: [self.uniform], OWN: [self.mixer], **self.others}.items():
            # Its own mixer is just being called and tells of each call: here without its hooks.
            self.squares[name].append(torch.stack([_square(mixer.forward(q, k, v) - out) for mixer in mixers], -1))

    def _keep(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.numbers[name].append(value)

    def findings(self) -> list[Finding]:
        """The layer, then each of its heads; errors are medians over the draws of random features."""
        numbers = {name: torch.cat(values).mean(0) for name, values in self.numbers.items()}
        squares = {name: torch.cat(values).sum(0) for name, values in self.squares.items()}
        features = self.mixer.kernel.features if isinstance(self.mixer, Linear) else None
        found = []
        for head in (None, *range(len(squares[""]))):
            some = slice(None) if head is None else slice(head, head + 1)
            whole = squares[""][some].sum().clamp(min=TINY)
            values: dict[str, Any] = {name: value[some].mean().item() for name, value in numbers.items()}
            found.append(
                Finding(
                    layer=self.layer,
                    head=None if head is None else head + 1,
                    mixer=self.name,
                    tokens=self.tokens,
                    head_dim=self.head_dim,
                    features=features,
                    errors={
                        name: (value[some].sum(0) / whole).sqrt().median().item()
                        for name, value in squares.items()
                        if name
                    },
                    **values,
                )
            )
        return found


def _features(kernel: Kernel, q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """How the features of a linear mixer share the work of a row, over all keys."""
    phi_q, (phi_k, r) = kernel.queries(q), kernel.keys(k)
    r = or_zero(r, phi_k)
    scale = torch.exp(r - r.amax(-2, keepdim=True))
    carried = (phi_q * (scale.mT @ phi_k / k.shape[-2])).abs()  # features may be signed
    total = carried.sum(-1, keepdim=True)
    return {
        "used": _entropy(carried / total.clamp(min=TINY)).exp().mean(-1),
        "vanished": (total <= TINY).float().mean((-1, -2)),
    }


def _entropy(p: Tensor) -> Tensor:
    """-sum p log p over the last axis."""
    return torch.special.entr(p).sum(-1)


def _rank(w: Tensor) -> Tensor:
    """(B,H,N,N) -> (B,H)."""
    values = torch.linalg.svdvals(w)
    return _entropy(values / values.sum(-1, keepdim=True)).exp()


def _square(x: Tensor) -> Tensor:
    return x.square().sum((-1, -2))
