"""The contract of a kernel: what linear attention needs to know about a feature map.

Shapes: N tokens, D head width, M features; leading dimensions (batch, heads) are arbitrary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor, nn

# A kernel divides x by D^s. Softmax divides q . k by D^(1/2), so each of q and k by D^(1/4).
Scale = Literal["sqrt", "fourth", "none"]
SCALES: dict[Scale, float] = {"sqrt": 0.5, "fourth": 0.25, "none": 0.0}


class Kernel(nn.Module, ABC):
    """A feature map phi. Attention weights are w_ij = phi(q_i) . phi(k_j) / sum_j phi(q_i) . phi(k_j).

    Each token is mapped on its own: no other token, head or image may change its features. The kernel owns its scaling.
    Inputs are fp32 or fp64, with autocast off.

    Features may be signed where the weights stay well defined: phi(q) . phi(k) must not be negative for any q and k
    (`sincos` adds a constant feature for this). A kernel that breaks this rule trains until the sum of a row crosses
    zero: its weights then grow without bound. The `raw=True` forms do, and say so.
    """

    features: int  # M

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """phi(q), up to one positive factor per token: (..., N, D) -> (..., N, M).

        The factor appears in the numerator and the denominator of a row of weights, so a kernel may drop it.
        """

    @abstractmethod
    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """phi(k) as (u, r) with phi(k_j) = u_j exp(r_j): (..., N, D) -> (..., N, M), (..., N, 1) or None for r = 0.

        No factor of a single key may be dropped: it is that key's weight. Only a factor common to all keys cancels.
        A kernel whose features overflow moves their exponent to r, detached; the mixer forms only exp(r - max r).
        A kernel with bounded features returns `self.queries(k), None`, if `queries` drops no factor.
        """

    def redraw(self, index: int) -> None:
        """Draws random features again, as a function of (seed, layer, index). Kernels without random features do
        nothing.
        """

    def scalars(self) -> dict[str, float]:
        """Learned scalars to log while the model trains."""
        return {}
