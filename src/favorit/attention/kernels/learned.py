"""Kernels whose feature map is trained with the model: f_theta in reports 1 and 2 of five (`model/presets.py`).

Shapes: N tokens, D head width, M features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit.attention.kernels.contract import SCALES, Kernel, Scale
from favorit.attention.kernels.registry import kernel
from favorit.spec import PositiveFloat, PositiveInt

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer's output in the dtype of x: kernels run in fp32 even if the weights of the model are half precision."""
    return F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))


@kernel("learned")
class Learned(Kernel):
    """phi(x) = softplus(W2 act(W1 x + b1) + b2): a learned network; O(N hidden (D + M)).

    All heads of a layer share the network. By default, `m` is D, `hidden` is 2 D, and x is divided by D^(1/4)
    (`scale`). `bias=False` removes b1 and b2. `raw=True` removes the softplus: features and weights may then be
    negative. Weights grow without bound where the sum of a row crosses zero, which can end training with NaN.

    Source: f_theta of Ding et al. (report 1 of five) and Clepper et al. (report 2); the softplus is ours.
    """

    def __init__(
        self,
        head_dim: int,
        m: PositiveInt | None = None,
        hidden: PositiveInt | None = None,
        act: Literal["relu", "gelu"] = "relu",
        raw: bool = False,
        bias: bool = True,
        scale: Scale = "fourth",
    ) -> None:
        super().__init__()
        self.features = m or head_dim
        self.inner = nn.Linear(head_dim, hidden or 2 * head_dim, bias=bias)
        self.outer = nn.Linear(hidden or 2 * head_dim, self.features, bias=bias)
        self.act = ACTIVATIONS[act]
        self.raw = raw
        self.scale = head_dim ** -SCALES[scale]

    def queries(self, q: Tensor) -> Tensor:
        z = _linear(self.outer, self.act(_linear(self.inner, q * self.scale)))
        return z if self.raw else F.softplus(z)

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        return self.queries(k), None


@kernel("mixture")
class Mixture(Kernel):
    """phi(x) = a exp(clamp(z/t, -5, 5)) + (1 - a) relu(z/t) + eps, z = net(x): a, t and eps are learned; O(N D^2).

    net is Linear D -> 2D, LayerNorm, ReLU, Linear 2D -> D on x / sqrt(D). a in (0, 1), t > 0.1 and eps > 0 are learned
    through a = sigmoid(raw_a), t = 0.1 + softplus(raw_t), eps = softplus(raw_eps); they start at 1/2, 1 and `eps`. With
    `raw=True`, a, t and eps are themselves parameters with the same initial values. Training may then push a out of
    (0, 1) or eps below 0, which makes features negative, or t through 0, which makes them infinite.

    Source: Clepper et al. (report 2 of five); the parametrizations that keep a, t and eps in range are ours.
    """

    def __init__(self, head_dim: int, raw: bool = False, eps: PositiveFloat = 1e-3) -> None:
        super().__init__()
        self.features = head_dim
        self.inner = nn.Linear(head_dim, 2 * head_dim)
        self.norm = nn.LayerNorm(2 * head_dim)
        self.outer = nn.Linear(2 * head_dim, head_dim)
        self.raw = raw
        self.raw_a = nn.Parameter(torch.tensor(0.5 if raw else 0.0))
        self.raw_t = nn.Parameter(torch.tensor(1.0 if raw else _inverse_softplus(0.9)))
        self.raw_eps = nn.Parameter(torch.tensor(eps if raw else _inverse_softplus(eps)))

    def queries(self, q: Tensor) -> Tensor:
        x = q * q.shape[-1] ** -0.5
        weight, bias = self.norm.weight.to(x.dtype), self.norm.bias.to(x.dtype)
        hidden = F.layer_norm(_linear(self.inner, x), self.norm.normalized_shape, weight, bias, self.norm.eps)
        a, t, eps = self._mixture_parameters()
        z = _linear(self.outer, F.relu(hidden)) / t
        return a * torch.exp(z.clamp(-5, 5)) + (1 - a) * F.relu(z) + eps

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        return self.queries(k), None

    def scalars(self) -> dict[str, float]:
        a, t, eps = self._mixture_parameters()
        return {"a": a.item(), "t": t.item(), "eps": eps.item()}

    def _mixture_parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """a, t, eps."""
        if self.raw:
            return self.raw_a, self.raw_t, self.raw_eps
        return torch.sigmoid(self.raw_a), 0.1 + F.softplus(self.raw_t), F.softplus(self.raw_eps)


def _inverse_softplus(y: float) -> float:
    return math.log(math.expm1(y))
