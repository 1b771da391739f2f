"""The interface of a kernel: what a feature map must provide for linear attention.

Shapes: N tokens, D head width, M features; leading dimensions (batch, heads) are arbitrary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

# The exponent s of each scale: a kernel divides x by D^s. Softmax divides q . k by D^(1/2), which is "fourth": D^(1/4)
# for each of q and k.
Scale = Literal["sqrt", "fourth", "none"]
SCALES: dict[Scale, float] = {"sqrt": 0.5, "fourth": 0.25, "none": 0.0}


class Kernel(nn.Module, ABC):
    """A feature map phi. Attention weights are w_ij = phi(q_i) . phi(k_j) / sum_j phi(q_i) . phi(k_j).

    The features of a token depend only on that token, not on other tokens, heads or images. The kernel scales its
    inputs itself. Inputs are fp32 or fp64, with autocast off. Masked keys arrive as zeros, so phi(0) and its gradient
    must be finite. There is at least one key; there may be no query. Sums of products of features must not overflow for
    norms of q and k up to 1e15; features that may overflow are given by their exponents (`ExponentialKernel`).

    Features may be negative, but phi(q) . phi(k) must not be negative for any q and k (`sincos` adds a constant feature
    for this). Otherwise the sum of a row may cross zero in training, where its weights grow without bound. Kernels with
    `raw=True` break this rule; their docstrings say so.
    """

    features: int  # M

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """phi(q), up to one positive factor per token: (..., N, D) -> (..., N, M).

        A kernel may drop any positive factor of a query: it cancels between the numerator and the denominator of w_ij.
        """

    @abstractmethod
    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """phi(k) as (u, r) with phi(k_j) = u_j exp(r_j): (..., N, D) -> (..., N, M), (..., N, 1) or None for r = 0.

        A kernel must keep every factor of a single key, because it changes the weight of that key. Only a constant
        factor, the same for all keys, cancels. A kernel may move the largest exponent of a key to r, detached from the
        graph, and divide u by exp(r). The mixer computes only exp(r - max r). If features cannot overflow and `queries`
        drops no factor, return `self.queries(k), None`.
        """

    def redraw(self, index: int) -> None:
        """Redraws random features as a function of (seed, layer, index). Kernels without random features do nothing."""

    def scalars(self) -> dict[str, float]:
        """Learned scalars to log while the model trains."""
        return {}


class ExponentialKernel(Kernel):
    """A kernel given by the exponents E of its features: phi(x) = exp(E(x)).

    Attention then follows its formula at any norm (`exponential.py`). A subclass implements the two methods below and
    does not override `queries` and `keys`.
    """

    @abstractmethod
    def query_exponents(self, q: Tensor) -> Tensor:
        """E(q), up to one term per token: (..., N, D) -> (..., N, M)."""

    @abstractmethod
    def key_exponents(self, k: Tensor) -> Tensor:
        """E(k), with every term of a key: (..., N, D) -> (..., N, M)."""

    def queries(self, q: Tensor) -> Tensor:
        exponents = self.query_exponents(q)
        return torch.exp(exponents - exponents.detach().amax(-1, keepdim=True))

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        exponents = self.key_exponents(k)
        r = exponents.detach().amax(-1, keepdim=True)
        return torch.exp(exponents - r), r
