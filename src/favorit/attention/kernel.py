"""Kernels: the feature maps of linear attention.

Shapes: B batch, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

# A kernel divides x by D^s. Softmax divides q . k by D^(1/2), so each of q and k by D^(1/4).
Scale = Literal["sqrt", "fourth", "none"]
SCALES: dict[Scale, float] = {"sqrt": 0.5, "fourth": 0.25, "none": 0.0}
# `Kernel.least` of signed features.
UNBOUNDED = -math.inf


class Lifted(NamedTuple):
    """Features phi (..., N, M), and the r of keys (..., N, 1) that was found with them; going back it is not looked at.

    `pull(gradient of phi, room for that of x)` fills the second, may overwrite the first, and returns the gradients of
    the parameters that need one.
    """

    phi: Tensor
    r: Tensor | None
    pull: Callable[[Tensor, Tensor], list[Tensor | None]]


class Lifter(NamedTuple):
    """A way to make features in blocks: phi = lift(x, whether as keys, memory (..., N, M) that phi may use).

    x is a block of what `prepared` makes of all tokens once: (..., N, D) -> (..., N, any), contiguous. `r` gives the r
    of all keys where it can be told without their features.
    """

    lift: Callable[[Tensor, bool, Tensor], Lifted]
    prepared: Callable[[Tensor], Tensor] = Tensor.contiguous
    r: Callable[[Tensor], Tensor] | None = None


class Kernel(nn.Module, ABC):
    """A feature map that owns its scaling. `queries` and `keys` are called in fp32 or better, autocast off.

    `features` is M. `least` is a lower bound of all features. Above 0, no row of weights can vanish. UNBOUNDED means
    signed features: unless the kernel keeps phi(q) . phi(k) non-negative by other means, weights may be negative, and
    they grow without bound where a row's sum crosses zero. `rounds` says that a lifter takes tokens of bf16 as well:
    each feature is then off by roundings of its own size.
    """

    features: int
    least: float = 0.0
    rounds: bool = False

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """(..., N, D) -> (..., N, M), at least `least`, each token up to a positive factor of its own (it cancels)."""

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """(..., N, D) -> phi (..., N, M), r (..., N, 1): the features of key j are phi_j exp(r_j). No factor of a key
        cancels, only one of all keys.

        r, detached, keeps phi in range where the features themselves would overflow or vanish; None, which is 0, unless
        a kernel needs it.
        """
        return self.queries(k), None

    def lifters(self, like: Tensor, pulled: bool) -> list[Lifter]:
        """Ways to the features of many blocks of tokens of that type and device, for a backward by hand; `pulled` says
        whether this is the way back, on which gradients will be pulled through them.

        The last way is right for all tokens; one before it may be faster where no feature that counts overflows or
        vanishes, which its caller finds out. By autograd; a kernel that knows its derivative saves that and the memory.
        """
        trained = [p for p in self.parameters() if p.requires_grad]

        def lift(x: Tensor, as_keys: bool, room: Tensor) -> Lifted:
            leaf = x.detach().requires_grad_(pulled)
            with torch.set_grad_enabled(pulled):
                phi, r = self.keys(leaf) if as_keys else (self.queries(leaf), None)

            def pull(grad: Tensor, of_x: Tensor) -> list[Tensor | None]:
                found, *others = torch.autograd.grad(phi, (leaf, *trained), grad, allow_unused=True)
                of_x.copy_(found)
                return [*others]

            return Lifted(phi.detach(), r, pull)

        return [Lifter(lift)]

    def scalars(self) -> dict[str, float]:
        """Learned numbers worth watching while a model trains."""
        return {}

    def redraw(self, index: int) -> None:
        """Draws random features anew, as a function of (seed, layer, index). Kernels without any ignore it."""


def or_zero(r: Tensor | None, phi: Tensor) -> Tensor:
    """r where there is one, else zeros for each token of phi."""
    return phi.new_zeros(*phi.shape[:-1], 1) if r is None else r


def only(kept: Tensor, r: Tensor | None, phi: Tensor) -> Tensor:
    """r with -inf for the keys that are not kept: their features phi_j exp(r_j) are 0."""
    return or_zero(r, phi).masked_fill(~kept, -torch.inf)


def project(x: Tensor, columns: Tensor, room: Tensor) -> Tensor:
    """x columns in `room`: (..., N, D), (D, M) -> (..., N, M); x and the room are contiguous."""
    torch.mm(x.view(-1, x.shape[-1]), columns, out=room.view(-1, columns.shape[-1]))
    return room


def with_one(x: Tensor) -> Tensor:
    """[x, 1], contiguous: (..., D) -> (..., D + 1)."""
    return torch.cat([x, x.new_ones(1).expand(*x.shape[:-1], 1)], -1)
