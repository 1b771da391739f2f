"""FAVOR+: positive orthogonal random features of the softmax kernel.

Shapes: B batch, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention.kernel import Kernel, Lifted, Lifter, project
from favorit.attention.linear import kernel
from favorit.attention.random_features import RandomRows, RowNorm
from favorit.errors import FavoritError
from favorit.spec import PositiveInt

LN2 = math.log(2)
# Of |x~|^2 in the exponent, by the kernel that is estimated.
DECAYS = {"softmax": 0.5, "gaussian": 1.0}


@kernel("favor")
class Favor(Kernel):
    """phi(x) = exp(W x~ - |x~|^2 / 2), x~ = x / D^(1/4): E[phi(q) . phi(k)] / M = exp(q . k / sqrt(D)).

    `kernel="gaussian"` is exp(W x~ - |x~|^2), which estimates exp(-|q~ - k~|^2 / 2): keys far from the query lose
    weight however long. `features="hyperbolic"` is [exp(u), exp(-u)] over M/2 rows: the same mean, less variance for
    nearby q and k. One W serves all heads of a layer. Of a query, |q~|^2 and the largest exponent are left out: they
    are factors of the whole row. Of a key, the largest exponent goes into r, where the mixer accounts for it; dropping
    it per key would reweight the keys. In blocks on a CPU nothing is left out of exponents that are in range without
    it.
    """

    def __init__(
        self,
        head_dim: int,
        layer: int,
        seed: int,
        m: PositiveInt = 128,
        features: Literal["positive", "hyperbolic"] = "positive",
        orthogonal: bool = True,
        norm: RowNorm = "chi",
        kernel: Literal["softmax", "gaussian"] = "softmax",
    ) -> None:
        super().__init__()
        self.mirrored = features == "hyperbolic"
        if self.mirrored and m % 2:
            raise FavoritError(
                f"favor: m={m} is not valid with features=hyperbolic: features come in pairs, m must be even"
            )
        self.features = m
        self.decay = DECAYS[kernel]
        rows = m // 2 if self.mirrored else m
        self.projection = RandomRows(rows, head_dim, layer=layer, seed=seed, orthogonal=orthogonal, norm=norm)

    def queries(self, q: Tensor) -> Tensor:
        exponent = self._exponent(q)
        return torch.exp(exponent - exponent.detach().amax(-1, keepdim=True))

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        exponent = self._exponent(k) + self._log_factor(k)
        r = exponent.detach().amax(-1, keepdim=True)
        return torch.exp(exponent - r), r

    def lifters(self, like: Tensor, pulled: bool) -> list[Lifter]:
        if self.mirrored:
            return super().lifters(like, pulled)
        rows = self._rows(like.dtype)
        # exp(u) = 2^(u / ln 2): torch's powers of two take 0.6 of the time of its exponentials (LOG.md).
        columns = rows.t() / LN2

        def lift(x: Tensor, as_keys: bool, room: Tensor, levelled: bool) -> Lifted:
            phi = project(x, columns, room)
            top = phi.amax(-1, keepdim=True) if levelled else None
            (phi if top is None else phi.sub_(top)).exp2_()

            def pull(grad: Tensor, of_x: Tensor) -> list[Tensor | None]:
                of_exponent = grad.mul_(phi)
                project(of_exponent, rows, of_x)
                if as_keys:  # a multiple of |k~|^2 is subtracted from every exponent of a key
                    of_x.addcmul_(x, of_exponent.sum(-1, keepdim=True), value=-2 * self.decay * x.shape[-1] ** -0.5)
                return []

            found = None if top is None or pulled or not as_keys else self._log_factor(x).add_(top, alpha=LN2)
            return Lifted(phi, found, pull)

        ways = [Lifter(partial(lift, levelled=False), r=self._log_factor), Lifter(partial(lift, levelled=True))]
        # To find out whether exponents need their maxima taken off, a processor that runs ahead would have to be waited
        # for.
        return ways if like.is_cpu else ways[1:]

    def redraw(self, index: int) -> None:
        self.projection.redraw(index)

    def _exponent(self, x: Tensor) -> Tensor:
        u = F.linear(x, self._rows(x.dtype))
        return torch.cat([u, -u], -1) if self.mirrored else u

    def _rows(self, dtype: torch.dtype) -> Tensor:
        """W / D^(1/4): scaling the rows is cheaper than scaling all tokens."""
        rows = self.projection.rows
        return rows.to(dtype) * rows.shape[-1] ** -0.25

    def _log_factor(self, x: Tensor) -> Tensor:
        """The term shared by all exponents of a key: -|x~|^2 / 2, or -|x~|^2 for the Gaussian kernel."""
        return x.square().sum(-1, keepdim=True) * (-self.decay * x.shape[-1] ** -0.5)
