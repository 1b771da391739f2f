"""The family of kernels phi(x) = f(P x) + eps with a scalar function f, which is all that tells them apart.

A new member is one decorated function: its name becomes the kernel's, its keywords become the kernel's parameters.
Shapes: B batch, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit.attention.kernel import Kernel, Lifted, Lifter, project, with_one
from favorit.attention.linear import add_kernel
from favorit.attention.precision import WIDE
from favorit.attention.random_features import RandomRows
from favorit.errors import FavoritError
from favorit.spec import PositiveFloat, PositiveInt, parameters_of

SCALES = {"sqrt": 0.5, "fourth": 0.25}
# Features f(P x) + eps of bf16 tell f(P x) from 0 where it is above a few thousandths of eps: eps has to be small beside it.
MOST_ROUNDED = 2**-6


class Homogeneous(NamedTuple):
    """What is known by hand of an f with f(s x) = s f(x), s > 0: f into a given tensor, and its slope.

    The scale of x is then a factor of all features, which cancels, once eps is divided by it.
    """

    raised: Callable[[Tensor, Tensor | float], Tensor]  # (x, eps) -> f(x) + eps, of which autograd keeps nothing but x
    into: Callable[[Tensor, float, Tensor], Tensor]  # (x + eps, eps, room) -> f(x) + eps in the room, which may be the first
    slope: Callable[[Tensor, Tensor, float], Tensor]  # (gradient of f, f(x) + eps, eps) -> gradient of x, in place of the first


def _relu_raised(x: Tensor, eps: Tensor | float) -> Tensor:
    # Where x is 0 its slope is 0, as that of torch.relu, which however keeps its result: eps could not be added in place.
    return torch.threshold(x, 0.0, 0.0).add_(eps)


def _relu_into(x: Tensor, eps: float, room: Tensor) -> Tensor:
    return torch.clamp_min(x, eps, out=room)


def _relu_slope(grad: Tensor, raised: Tensor, eps: float) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(grad, raised, eps, grad_input=grad)


# Named functions: a model that holds them can be pickled.
HOMOGENEOUS = {"relu": Homogeneous(_relu_raised, _relu_into, _relu_slope)}


class Pointwise(Kernel):
    """phi(x) = f(P x / D^s) + eps; O(N M D), or O(N D) with P the identity.

    P is the identity (`m=None`), M random orthogonal rows of length sqrt(D) (`m=128`), or the same rows as the start of learned ones
    (`learned=True`). `scale` is D^(1/2) (`sqrt`) or, as softmax has it for each of q and k, D^(1/4) (`fourth`).
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor],
        by_hand: Homogeneous | None,
        head_dim: int,
        layer: int,
        seed: int,
        m: PositiveInt | None = None,
        learned: bool = False,
        eps: PositiveFloat = 1e-3,
        scale: Literal["sqrt", "fourth"] = "fourth",
    ) -> None:
        super().__init__()
        if learned and m is None:
            raise FavoritError("learned=True needs m, the number of learned features: write for example m=128, learned=True")
        self.f, self.by_hand, self.eps, self.scale = f, by_hand, eps, head_dim ** -SCALES[scale]
        if by_hand is not None:
            self.eps, self.scale = eps / self.scale, 1.0
        self.features, self.least = m or head_dim, self.eps
        self.rounds = by_hand is not None and m is not None and not learned and self.eps <= MOST_ROUNDED
        # torch makes a tensor of a number at each call, which is a thirtieth of what a short sequence takes.
        self.ready_eps = {dtype: torch.tensor(self.eps, dtype=dtype, device="cpu") for dtype in WIDE}
        self.projection: RandomRows | None = None
        self.learned_rows: nn.Parameter | None = None
        if m is not None:
            projection = RandomRows(m, head_dim, layer=layer, seed=seed, norm="regular")
            if learned:
                self.learned_rows = nn.Parameter(projection.rows)
            else:
                self.projection = projection

    def queries(self, q: Tensor) -> Tensor:
        rows = self._rows(q.dtype)
        q = self._scaled(q) if rows is None else F.linear(q, rows)
        if self.by_hand is None:
            return self.f(q) + self.eps
        # A compiler takes a number as a constant; a tensor on the CPU would keep it from recording graphs of a GPU.
        return self.by_hand.raised(q, self.eps if torch.compiler.is_compiling() else self.ready_eps.get(q.dtype, self.eps))

    def lifters(self, like: Tensor, pulled: bool) -> list[Lifter]:
        if self.by_hand is None or self.learned_rows is not None:
            return super().lifters(like, pulled)
        (_, into, slope), rows = self.by_hand, self._rows(like.dtype)
        eps = torch.tensor(self.eps, dtype=like.dtype).item()  # as features have it: whether one is above decides its slope
        # P x + eps = [P, eps] [x, 1]: one more number of a token costs less than a pass over its features.
        columns = None if rows is None else torch.cat([rows.t(), rows.new_full((1, len(rows)), eps)])

        def prepared(x: Tensor) -> Tensor:
            return torch.add(x, eps).contiguous() if columns is None else with_one(x)

        def lift(x: Tensor, as_keys: bool, room: Tensor) -> Lifted:
            phi = into(x if columns is None else project(x, columns, room), eps, room)

            def pull(grad: Tensor, of_x: Tensor) -> list[Tensor | None]:
                of_u = slope(grad, phi, eps)
                of_x.copy_(of_u) if rows is None else project(of_u, rows, of_x)
                return []

            return Lifted(phi, None, pull)

        return [Lifter(lift, prepared)]

    def _rows(self, dtype: torch.dtype) -> Tensor | None:
        """P / D^s: cheaper than scaling all tokens."""
        rows = self.learned_rows if self.projection is None else self.projection.rows
        return None if rows is None else self._scaled(rows.to(dtype))

    def _scaled(self, x: Tensor) -> Tensor:
        """x / D^s, or x where that factor has gone to eps."""
        return x if self.scale == 1 else x * self.scale

    def redraw(self, index: int) -> None:
        if self.projection is not None:
            self.projection.redraw(index)


def pointwise(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Registers the kernel f(P x) + eps under f's name. f maps a tensor elementwise to non-negative values."""
    own = parameters_of(f, ("x",))

    def build(**values: Any) -> Pointwise:
        of_f = {key: values.pop(key) for key in own if key in values}
        return Pointwise(partial(f, **of_f), HOMOGENEOUS.get(f.__name__), **values)

    build.__doc__ = f.__doc__
    add_kernel(f.__name__, build, {**parameters_of(Pointwise, ("self", "f", "by_hand")), **own})
    return f


@pointwise
def relu(x: Tensor) -> Tensor:
    """f(x) = max(x, 0)."""
    return torch.relu(x)


@pointwise
def elu(x: Tensor, alpha: PositiveFloat = 1.0) -> Tensor:
    """f(x) = elu(x) + alpha: the ELU raised to start at 0."""
    return F.elu(x, alpha) + alpha


@pointwise
def gelu(x: Tensor) -> Tensor:
    """f(x) = gelu(x) - min gelu: the GELU raised by 0.17 to be non-negative."""
    return F.gelu(x) - GELU_MINIMUM


@pointwise
def exp(x: Tensor, clamp: PositiveFloat = 10.0) -> Tensor:
    """f(x) = exp(x), x clamped to [-clamp, clamp]."""
    return torch.exp(x.clamp(-clamp, clamp))


# gelu is least where its derivative Phi(x) + x phi(x) is zero, at x = -0.7517915...
GELU_MINIMUM = -0.16997120747990369
