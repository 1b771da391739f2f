"""Kernels: the feature maps phi of linear attention, w_ij proportional to phi(q_i) . phi(k_j).

Shapes: B batch, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Kernel(nn.Module, ABC):
    """A feature map that owns its scaling. It is called in fp32 or better, autocast off. `features` is M."""

    features: int

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """(B,H,N,D) -> (B,H,N,M), non-negative, each token up to a positive factor of its own (it cancels)."""

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """(B,H,N,D) -> phi (B,H,N,M), r (B,H,N,1): the features of key j are phi_j exp(r_j), and no factor of theirs cancels.

        r, detached, keeps phi in range where the features themselves would overflow or vanish; zero unless a kernel needs it.
        """
        return self.queries(k), k.new_zeros(*k.shape[:-1], 1)

    def scalars(self) -> dict[str, float]:
        """Learned numbers worth watching while a model trains."""
        return {}

    def redraw(self, index: int) -> None:
        """Draws random features anew, as a function of (seed, layer, index). Kernels without any ignore it."""
