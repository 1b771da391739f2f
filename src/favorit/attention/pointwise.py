"""The family of kernels phi(x) = f(P x + b) + eps with a scalar function f, which is all that tells them apart.

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

from favorit.attention.kernel import SCALES, UNBOUNDED, Kernel, Lifted, Lifter, Scale, project, with_one
from favorit.attention.linear import add_kernel
from favorit.attention.precision import WIDE
from favorit.attention.random_features import RandomRows
from favorit.errors import FavoritError
from favorit.spec import PositiveFloat, PositiveInt, parameters_of

# Features f(P x) + eps of bf16 tell f(P x) from 0 where it is above a few thousandths of eps: eps has to be small
# beside it.
MOST_ROUNDED = 2**-6


class Homogeneous(NamedTuple):
    """What is known by hand of an f with f(s x) = s f(x), s > 0: f into a given tensor, and its slope.

    f(s x + b) + eps = s (f(x + b/s) + eps/s): the scale of x becomes a factor of all features, which cancels.
    """

    raised: Callable[[Tensor, Tensor | float], Tensor]  # (x, eps) -> f(x) + eps, of which autograd keeps nothing but x
    into: Callable[
        [Tensor, float, Tensor], Tensor
    ]  # (x + eps, eps, room) -> f(x) + eps in the room, which may be the first
    slope: Callable[
        [Tensor, Tensor, float], Tensor
    ]  # (gradient of f, f(x) + eps, eps) -> gradient of x, in place of the first


def _relu_raised(x: Tensor, eps: Tensor | float) -> Tensor:
    # Where x is 0 its slope is 0, as that of torch.relu, which however keeps its result: eps could not be added in
    # place.
    return torch.threshold(x, 0.0, 0.0).add_(eps)


def _relu_into(x: Tensor, eps: float, room: Tensor) -> Tensor:
    return torch.clamp_min(x, eps, out=room)


def _relu_slope(grad: Tensor, raised: Tensor, eps: float) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(grad, raised, eps, grad_input=grad)


# Named functions: a model that holds them can be pickled.
HOMOGENEOUS = {"relu": Homogeneous(_relu_raised, _relu_into, _relu_slope)}


class Pointwise(Kernel):
    """phi(x) = f(P x / (t D^s) + b) + eps; O(N M D), or O(N D) with P the identity.

    P is the identity (`m=None`), M random orthogonal rows of norm sqrt(D) (`m=128`), or the same rows as the start of
    learned ones (`learned=True`). `rows="orthonormal"` draws P as `torch.nn.init.orthogonal_` does: rows of norm about
    sqrt(D/M), 1 where M <= D. `scale` is D^(1/2) (`sqrt`), D^(1/4) (`fourth`, as softmax has it for each of q and k) or
    1 (`none`).

    `bias=True` adds b, 0 otherwise. [P, b] is drawn, redrawn and learned as one matrix with rows in R^(D+1), so b is
    random too, not scaled, and about as large as an entry of P. `temperature=True` learns t > 0, one for a layer; it
    starts at 1 and is logged. `signed` says that f takes values of both signs: weights may then be negative, and they
    grow without bound where a row's sum crosses zero, which can end training with NaN.
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor],
        by_hand: Homogeneous | None,
        signed: bool,
        head_dim: int,
        layer: int,
        seed: int,
        m: PositiveInt | None = None,
        learned: bool = False,
        eps: PositiveFloat = 1e-3,
        scale: Scale = "fourth",
        bias: bool = False,
        rows: Literal["regular", "orthonormal"] = "regular",
        temperature: bool = False,
    ) -> None:
        super().__init__()
        for option, is_given in (
            ("learned=True", learned),
            ("bias=True", bias),
            ("rows=orthonormal", rows != "regular"),
        ):
            if is_given and m is None:
                raise FavoritError(f"{option} needs m, the number of features: write for example m=128, {option}")
        if temperature:
            by_hand = None  # a learned scale has a gradient through eps and b
        factor = head_dim ** -SCALES[scale]
        self.f, self.by_hand = f, by_hand
        self.is_biased = bias
        self.scale = factor if by_hand is None else 1.0
        self.bias_scale = 1.0 if by_hand is None else 1 / factor
        self.eps = eps if by_hand is None else eps / factor
        self.features = m or head_dim
        self.least = UNBOUNDED if signed else self.eps
        # With a bias P x + b may cancel: its rounding is not of the size of the feature.
        self.rounds = by_hand is not None and m is not None and not learned and not bias and self.eps <= MOST_ROUNDED
        # torch makes a tensor of a number at each call, which is a thirtieth of what a short sequence takes.
        self.ready_eps = {dtype: torch.tensor(self.eps, dtype=dtype, device="cpu") for dtype in WIDE}
        self.projection: RandomRows | None = None
        self.learned_rows: nn.Parameter | None = None
        self.log_t = nn.Parameter(torch.zeros(())) if temperature else None
        if m is not None:
            projection = RandomRows(m, head_dim + bias, layer=layer, seed=seed, norm=rows)
            if learned:
                self.learned_rows = nn.Parameter(projection.rows)
            else:
                self.projection = projection

    def queries(self, q: Tensor) -> Tensor:
        rows, bias = self._rows_and_bias(q.dtype)
        q = self._scaled(q) if rows is None else F.linear(q, rows, bias)
        if self.by_hand is None:
            return self.f(q) + self.eps
        # A compiler takes a number as a constant; a tensor on the CPU would keep it from recording graphs of a GPU.
        return self.by_hand.raised(
            q, self.eps if torch.compiler.is_compiling() else self.ready_eps.get(q.dtype, self.eps)
        )

    def lifters(self, like: Tensor, pulled: bool) -> list[Lifter]:
        if self.by_hand is None or self.learned_rows is not None:
            return super().lifters(like, pulled)
        _, into, slope = self.by_hand
        rows, bias = self._rows_and_bias(like.dtype)
        eps = torch.tensor(
            self.eps, dtype=like.dtype
        ).item()  # as features have it: whether one is above decides its slope
        columns = None
        if rows is not None:
            # P x + b + eps = [P, b + eps] [x, 1]: one more element of a token costs less than a pass over its features.
            added = rows.new_full((len(rows),), eps) if bias is None else bias + eps
            columns = torch.cat([rows.t(), added[None]])

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

    def _rows_and_bias(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """P / (t D^s), which is cheaper than scaling all tokens, and b; b D^s where that factor has gone to eps and
        b.
        """
        rows = self.learned_rows if self.projection is None else self.projection.rows
        if rows is None:
            return None, None
        rows = rows.to(dtype)
        if not self.is_biased:
            return self._scaled(rows), None
        return self._scaled(rows[:, :-1]), rows[:, -1] * self.bias_scale

    def _scaled(self, x: Tensor) -> Tensor:
        """x / (t D^s), or x where that factor has gone to eps and b."""
        x = x if self.scale == 1 else x * self.scale
        return x if self.log_t is None else x * torch.exp(-self.log_t.to(x.dtype))

    def scalars(self) -> dict[str, float]:
        return {} if self.log_t is None else {"t": self.log_t.exp().item()}

    def redraw(self, index: int) -> None:
        if self.projection is not None:
            self.projection.redraw(index)


def pointwise(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Registers the kernel f(P x + b) + eps under f's name. f maps a tensor elementwise to non-negative values, or with
    its own keyword `raw=True` to values of both signs.
    """
    own = parameters_of(f, ("x",))

    def build(**values: Any) -> Pointwise:
        of_f = {key: values.pop(key) for key in own if key in values}
        return Pointwise(partial(f, **of_f), HOMOGENEOUS.get(f.__name__), of_f.get("raw", False), **values)

    build.__doc__ = f"phi(x) = f(P x / (t D^s) + b) + eps, {f.__doc__}"
    add_kernel(f.__name__, build, {**parameters_of(Pointwise, ("self", "f", "by_hand", "signed")), **own})
    return f


@pointwise
def relu(x: Tensor) -> Tensor:
    """f(x) = max(x, 0); with m, random features of the arc-cosine kernel: |q| |k| times a function of their angle."""
    return torch.relu(x)


@pointwise
def elu(x: Tensor, alpha: PositiveFloat = 1.0, raw: bool = False) -> Tensor:
    """f(x) = elu(x) + alpha: the ELU raised to start at 0; raw=True: elu(x), which may be negative."""
    return F.elu(x, alpha) if raw else F.elu(x, alpha) + alpha


@pointwise
def gelu(x: Tensor, raw: bool = False) -> Tensor:
    """f(x) = gelu(x) - min gelu: the GELU raised by 0.17 to be non-negative; raw=True: gelu(x), which may be
    negative.
    """
    return F.gelu(x) if raw else F.gelu(x) - GELU_MINIMUM


@pointwise
def exp(x: Tensor, clamp: PositiveFloat = 10.0) -> Tensor:
    """f(x) = exp(x), x clamped to [-clamp, clamp]; temperature=True learns t, so P x is clamped at +-clamp t: dynamic
    clamping.
    """
    return torch.exp(x.clamp(-clamp, clamp))


# gelu is least where its derivative Phi(x) + x phi(x) is zero, at x = -0.7517915...
GELU_MINIMUM = -0.16997120747990369
