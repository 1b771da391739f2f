"""The family of kernels phi(x) = f(P x + b) + eps. Its members differ only in the scalar function f.

To add a member, decorate a function with `@pointwise`: its name becomes the kernel's name, its keywords become
parameters of the kernel.
Shapes: N tokens, D head width, M features.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit.attention.kernels.contract import SCALES, Kernel, Scale
from favorit.attention.kernels.random_features import RandomRows
from favorit.attention.kernels.registry import add_kernel
from favorit.errors import FavoritError
from favorit.spec import PositiveFloat, PositiveInt, parameters_of

# The minimum of gelu, at x = -0.7517915..., where its derivative Phi(x) + x phi(x) is zero.
GELU_MINIMUM = -0.16997120747990369


class Pointwise(Kernel):
    """phi(x) = f(P x / (t D^s) + b) + eps; O(N M D), or O(N D) with P the identity.

    P is the identity (`m=None`), M random rows of norm sqrt(D), orthogonal in blocks of D rows (`m=128`), or learned
    rows that are initialized this way (`m=128, learned=True`). `rows="orthonormal"` draws P as
    `torch.nn.init.orthogonal_` does: rows have norm about sqrt(D/M), or 1 if M <= D. `scale` divides x by D^(1/2)
    (`sqrt`), by D^(1/4) (`fourth`, as softmax does to each of q and k) or by 1 (`none`).

    `bias=True` adds b; otherwise b = 0. [P, b] is drawn, redrawn and learned as one matrix with rows in R^(D+1), so b
    is random too and about as large as an entry of P. b is not divided by t D^s. `temperature=True` learns one t > 0
    per layer, which starts at 1 and is logged.
    """

    def __init__(
        self,
        f: Callable[..., Tensor],
        f_parameters: Mapping[str, Any],
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
        needs_m = {"learned=True": learned, "bias=True": bias, "rows=orthonormal": rows != "regular"}
        for option, is_given in needs_m.items():
            if is_given and m is None:
                raise FavoritError(f"{option} needs m, the number of features: write for example m=128, {option}")
        self.f = f
        self.f_parameters = dict(f_parameters)
        self.is_signed = bool(f_parameters.get("raw", False))
        self.is_biased = bias
        self.scale = head_dim ** -SCALES[scale]
        self.eps = eps
        self.features = m or head_dim
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
        rows, bias = self.scaled_rows_and_bias(q.dtype)
        u = self._scaled(q) if rows is None else F.linear(q, rows, bias)
        return self.f(u, **self.f_parameters) + self.eps

    def keys(self, k: Tensor) -> tuple[Tensor, None]:
        return self.queries(k), None

    def scaled_rows_and_bias(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """P / (t D^s) and b. Scaling the rows is cheaper than scaling all tokens."""
        rows = self.learned_rows if self.projection is None else self.projection.rows
        if rows is None:
            return None, None
        if not self.is_biased:
            return self._scaled(rows.to(dtype)), None
        return self._scaled(rows[:, :-1].to(dtype)), rows[:, -1].to(dtype)

    def _scaled(self, x: Tensor) -> Tensor:
        """x / (t D^s)."""
        x = x if self.scale == 1 else x * self.scale
        return x if self.log_t is None else x * torch.exp(-self.log_t.to(x.dtype))

    def scalars(self) -> dict[str, float]:
        return {} if self.log_t is None else {"t": self.log_t.exp().item()}

    def redraw(self, index: int) -> None:
        if self.projection is not None:
            self.projection.redraw(index)


def pointwise(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Registers the kernel f(P x + b) + eps under the name of f.

    f maps a tensor elementwise to values >= 0. If f has a parameter `raw`, it may return negative values for raw=True.
    The docstring of f becomes the docstring of the kernel: the first paragraph is the formula of f, the last one its
    source.
    """
    if not inspect.isfunction(f) or next(iter(inspect.signature(f).parameters), "") != "x":
        raise FavoritError(f"@pointwise needs a function whose first parameter is x, not {f!r}: def my_kernel(x): ...")
    f_parameters = parameters_of(f, ("x",))

    def build(**values: Any) -> Pointwise:
        f_values = {key: values.pop(key) for key in f_parameters if key in values}
        return Pointwise(f, f_values, **values)

    formula, _, rest = inspect.cleandoc(f.__doc__ or "").partition("\n\n")
    cost = "O(N M D), or O(N D) without m."
    build.__doc__ = f"phi(x) = f(P x / (t D^s) + b) + eps, {formula.rstrip('.')}; {cost}\n\n{rest}"
    add_kernel(f.__name__, build, {**parameters_of(Pointwise, ("self", "f", "f_parameters")), **f_parameters})
    return f


@pointwise
def relu(x: Tensor) -> Tensor:
    """f(x) = max(x, 0).

    With m, these are random features of the arc-cosine kernel: |q| |k| times a function of the angle between q and k.

    Source: Choromanski et al. 2021, Rethinking Attention with Performers, arXiv 2009.14794; the arc-cosine kernel from
    Cho and Saul 2009, Kernel Methods for Deep Learning.
    """
    return torch.relu(x)


@pointwise
def elu(x: Tensor, alpha: PositiveFloat = 1.0, raw: bool = False) -> Tensor:
    """f(x) = elu(x) + alpha: the ELU shifted to be non-negative.

    `raw=True` is elu(x), which may be negative.

    Source: Katharopoulos et al. 2020, Transformers are RNNs, arXiv 2006.16236; unshifted in Clepper et al. (report 2 of
    five).
    """
    return F.elu(x, alpha) if raw else F.elu(x, alpha) + alpha


@pointwise
def gelu(x: Tensor, raw: bool = False) -> Tensor:
    """f(x) = gelu(x) - min gelu: the GELU shifted up by 0.17 to be non-negative.

    `raw=True` is gelu(x), which may be negative.

    Source: Clepper et al. (report 2 of five); the shift is ours. GELU from Hendrycks and Gimpel 2016, Gaussian Error
    Linear Units, arXiv 1606.08415.
    """
    return F.gelu(x) if raw else F.gelu(x) - GELU_MINIMUM


@pointwise
def exp(x: Tensor, clamp: PositiveFloat = 10.0) -> Tensor:
    """f(x) = exp(min(max(x, -c), c)), c = clamp.

    `temperature=True` divides P x by t before clamping; the source calls this dynamic clamping.

    Source: Clepper et al. (report 2 of five). These features do not estimate the softmax kernel; `favor` does.
    """
    return torch.exp(x.clamp(-clamp, clamp))
