"""Which derivatives an implementation supports: transforms of torch.func, forward mode, and second derivatives.

Operations of torch support all of them, except its fused attention kernel. The autograd functions of `cpu/` support
first derivatives in reverse mode only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from favorit.errors import FavoritError

Gradients = tuple[Tensor | None, ...]


def is_transformed() -> bool:
    """True inside a transform of torch.func (grad, vmap, jvp, hessian, ...) and inside forward-mode differentiation.

    `torch.compile` traces transforms itself, so the answer is then False.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def first_derivatives_only(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Decorates the backward of an autograd function: `create_graph=True`, for second derivatives, raises an error.

    torch's `once_differentiable` raises one only if the gradient of the output requires gradients. Otherwise, a second
    derivative would silently lack the part of this function.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grad_outputs: Tensor) -> Gradients:
        if torch.is_grad_enabled():  # in a backward pass, only with create_graph=True
            raise FavoritError(
                "create_graph=True is not valid here: fast attention on the CPU has no second derivatives; use "
                "torch.func instead of torch.autograd (for example torch.func.hessian), which computes the direct form"
            )
        return backward(ctx, *grad_outputs)

    return wrapped
