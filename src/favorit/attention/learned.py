"""Kernels whose feature map is trained with the model: f_theta.

Shapes: B batch, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit.attention.kernel import Kernel
from favorit.attention.linear import kernel
from favorit.spec import PositiveInt

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer in the precision of x: kernels run in fp32 even where the model's weights are half precision."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


@kernel("learned")
class Learned(Kernel):
    """phi(x) = softplus(W2 act(W1 x + b1) + b2), one network for all heads of a layer; O(N D (hidden + M)).

    x is scaled by D^(-1/4). `hidden` is 2 D by default and `m` D.
    """

    def __init__(
        self,
        head_dim: int,
        m: PositiveInt | None = None,
        hidden: PositiveInt | None = None,
        act: Literal["relu", "gelu"] = "relu",
    ) -> None:
        super().__init__()
        self.features = m or head_dim
        self.inner = nn.Linear(head_dim, hidden or 2 * head_dim)
        self.outer = nn.Linear(hidden or 2 * head_dim, self.features)
        self.act = ACTIVATIONS[act]

    def queries(self, q: Tensor) -> Tensor:
        x = q * q.shape[-1] ** -0.25
        return F.softplus(_linear(self.outer, self.act(_linear(self.inner, x))))


@kernel("mixture")
class Mixture(Kernel):
    """phi(x) = a exp(clamp(z/t, -5, 5)) + (1 - a) relu(z/t) + eps, z = net(x); O(N D^2).

    net is Linear D -> 2D, LayerNorm, ReLU, Linear 2D -> D on x / sqrt(D). a in (0, 1), t > 0.1 and eps > 0 are learned through
    a = sigmoid(raw_a), t = 0.1 + softplus(raw_t), eps = softplus(raw_eps); they start at 1/2, 1 and 1e-3.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.features = head_dim
        self.inner = nn.Linear(head_dim, 2 * head_dim)
        self.norm = nn.LayerNorm(2 * head_dim)
        self.outer = nn.Linear(2 * head_dim, head_dim)
        self.raw_a = nn.Parameter(torch.zeros(()))
        self.raw_t = nn.Parameter(torch.tensor(_inverse_softplus(0.9)))
        self.raw_eps = nn.Parameter(torch.tensor(_inverse_softplus(1e-3)))

    def scalars(self) -> dict[str, float]:
        a, t, eps = self._parameters_of_f()
        return {"a": a.item(), "t": t.item(), "eps": eps.item()}

    def queries(self, q: Tensor) -> Tensor:
        x = q * q.shape[-1] ** -0.5
        weight, bias = self.norm.weight.to(x.dtype), self.norm.bias.to(x.dtype)
        hidden = F.layer_norm(_linear(self.inner, x), self.norm.normalized_shape, weight, bias, self.norm.eps)
        a, t, eps = self._parameters_of_f()
        z = _linear(self.outer, F.relu(hidden)) / t
        return a * torch.exp(z.clamp(-5, 5)) + (1 - a) * F.relu(z) + eps

    def _parameters_of_f(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.sigmoid(self.raw_a), 0.1 + F.softplus(self.raw_t), F.softplus(self.raw_eps)


def _inverse_softplus(y: float) -> float:
    return math.log(math.expm1(y))
