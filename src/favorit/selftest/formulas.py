"""Reference implementations of feature maps, written from their definitions. Kernels are compared with them.

A formula maps (the kernel's parameters and buffers by name, x (..., N, D)) to the features of a key (..., N, M). It
keeps every factor of a token, so a kernel that drops a factor of a key differs from its formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

State = Mapping[str, Tensor]
Formula = Callable[[State, Tensor], Tensor]

# The minimum of gelu.
GELU_MINIMUM = -0.16997120747990369


def scaled(x: Tensor, power: float = 0.25) -> Tensor:
    """x / D^power."""
    return x * x.shape[-1] ** -power


def affine(s: State, x: Tensor, power: float = 0.25, t: Tensor | float = 1.0) -> Tensor:
    """P x / (t D^power) + b. The state holds [P, b] as one matrix; b = 0 if it has only D columns."""
    rows = s["learned_rows"] if "learned_rows" in s else s["projection.rows"]
    u = scaled(x, power) / t @ rows[:, : x.shape[-1]].mT
    return u + rows[:, -1] if rows.shape[1] > x.shape[-1] else u


def mlp(s: State, x: Tensor, act: Callable[[Tensor], Tensor] = F.relu) -> Tensor:
    """W2 act(W1 x + b1) + b2."""
    return F.linear(act(F.linear(x, s["inner.weight"], s.get("inner.bias"))), s["outer.weight"], s.get("outer.bias"))


def mixture(s: State, x: Tensor, a: Tensor, t: Tensor, eps: Tensor) -> Tensor:
    """a exp(clamp(z / t, -5, 5)) + (1 - a) relu(z / t) + eps, z = net(x / sqrt(D))."""
    hidden = F.linear(scaled(x, 0.5), s["inner.weight"], s["inner.bias"])
    hidden = F.layer_norm(hidden, hidden.shape[-1:], s["norm.weight"], s["norm.bias"])
    z = F.linear(F.relu(hidden), s["outer.weight"], s["outer.bias"]) / t
    return a * z.clamp(-5, 5).exp() + (1 - a) * F.relu(z) + eps


def waves(s: State, x: Tensor) -> Tensor:
    """[1, c cos(W x~), c sin(W x~)], c = sqrt(2 / m)."""
    u = scaled(x) @ s["projection.rows"].mT
    c = u.shape[-1] ** -0.5
    return torch.cat([torch.ones_like(x[..., :1]), c * u.cos(), c * u.sin()], -1)


def favor(s: State, x: Tensor, decay: float = 0.5) -> Tensor:
    """exp(W x~ - decay |x~|^2)."""
    x = scaled(x)
    return torch.exp(x @ s["projection.rows"].mT - decay * x.square().sum(-1, keepdim=True))


def both_signs(feature_map: Formula) -> Formula:
    """[phi(x), phi(-x)]."""
    return lambda s, x: torch.cat([feature_map(s, x), feature_map(s, -x)], -1)
