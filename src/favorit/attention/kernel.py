"""Kernels: the feature maps of linear attention.

Shapes: B batch, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Lifted(NamedTuple):
    """Features phi (..., N, M), their r (..., N, 1; what it is for queries does not matter), and the function from the gradient of phi to
    that of x and those of the parameters that need one.

    `pull` may overwrite what it is given.
    """

    phi: Tensor
    r: Tensor
    pull: Callable[[Tensor], tuple[Tensor, list[Tensor | None]]]


class Kernel(nn.Module, ABC):
    """A feature map that owns its scaling. It is called in fp32 or better, autocast off. `features` is M."""

    features: int

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """(..., N, D) -> (..., N, M), non-negative, each token up to a positive factor of its own (it cancels)."""

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """(..., N, D) -> phi (..., N, M), r (..., N, 1): the features of key j are phi_j exp(r_j), and no factor of theirs cancels.

        r, detached, keeps phi in range where the features themselves would overflow or vanish; None, which is 0, unless a kernel needs it.
        """
        return self.queries(k), None

    def lift(self, x: Tensor, as_keys: bool, room: Tensor) -> Lifted:
        """The features of x for a backward by hand; `pull` works where gradients are enabled.

        `room` is memory as large as phi that may be used for it. By autograd; a kernel that knows its derivative saves that and the memory.
        """
        leaf = x.detach().requires_grad_(torch.is_grad_enabled())
        phi, r = self.keys(leaf) if as_keys else (self.queries(leaf), None)
        wanted = (leaf, *(p for p in self.parameters() if p.requires_grad))

        def pull(grad: Tensor) -> tuple[Tensor, list[Tensor | None]]:
            of_x, *others = torch.autograd.grad(phi, wanted, grad, allow_unused=True)
            return of_x, [*others]

        return Lifted(phi.detach(), or_zero(r, phi), pull)

    def scalars(self) -> dict[str, float]:
        """Learned numbers worth watching while a model trains."""
        return {}

    def redraw(self, index: int) -> None:
        """Draws random features anew, as a function of (seed, layer, index). Kernels without any ignore it."""


def or_zero(r: Tensor | None, phi: Tensor) -> Tensor:
    """r where there is one, else zeros for each token of phi."""
    return phi.new_zeros(*phi.shape[:-1], 1) if r is None else r


def project(x: Tensor, rows: Tensor, room: Tensor) -> Tensor:
    """x rows^T in `room`: (..., N, D), (M, D) -> (..., N, M)."""
    torch.mm(x.reshape(-1, x.shape[-1]), rows.t(), out=room.view(-1, len(rows)))
    return room.view(*x.shape[:-1], len(rows))
