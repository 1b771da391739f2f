"""Checks of tensors where a user's code calls ours: type, dtype and shape, never values.

They force no device sync, add no operation to a graph, and work inside torch.compile, torch.export and on the meta
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from favorit.autocast import is_autocast_enabled
from favorit.errors import FavoritError


def check_tensor(
    name: str, x: Any, axes: Sequence[str | int], dtype: torch.dtype | None = None, weight: Any = None, hint: str = ""
) -> None:
    """Raises an error unless `x` is a tensor with these `axes`: a number is the size of an axis, text names a free one.

    Its dtype must be `dtype`, by default any floating-point type. Without autocast, it must also be the dtype of
    `weight`, the first parameter that multiplies `x`. `hint` ends the message about a wrong type.
    """
    if isinstance(x, Tensor) and x.ndim == len(axes) and (x.is_floating_point() if dtype is None else x.dtype is dtype):
        for size, expected in zip(x.shape, axes):
            if size != expected and not isinstance(expected, str):
                break
        else:
            if type(weight) is nn.Parameter and x.dtype is not weight.dtype:
                _check_same_dtype(name, x, weight)
            return
    kind = "floating-point" if dtype is None else str(dtype).removeprefix("torch.")
    shape = f"({', '.join(map(str, axes))})"
    given = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
    is_wrong_shape = isinstance(x, Tensor) and (x.is_floating_point() if dtype is None else x.dtype is dtype)
    raise FavoritError(f"{name} must be a {kind} tensor of shape {shape}, not {given}{'' if is_wrong_shape else hint}")


def _check_same_dtype(name: str, x: Tensor, weight: nn.Parameter) -> None:
    # Autocast converts half and single precision, but not fp64.
    is_converted = is_autocast_enabled(x) and torch.float64 not in (x.dtype, weight.dtype)
    if weight.is_floating_point() and not is_converted:
        raise FavoritError(
            f"{name} is {x.dtype}, but the weights are {weight.dtype}: convert it with {name}.to({weight.dtype})"
        )


def check_attention_inputs(
    q: Any, k: Any, v: Any, key_mask: Any, heads: int | None = None, head_dim: int | None = None
) -> None:
    """Raises an error unless q is (B,H,Nq,D), k (B,H,Nk,D), v (B,H,Nk,Dv), and `key_mask` is None or boolean (B,Nk).

    `heads` and `head_dim` are H and D, if they are known.
    """
    check_tensor("q", q, ("B", heads or "H", "Nq", head_dim or "D"))
    batch, heads, _, head_dim = q.shape
    check_tensor("k", k, (batch, heads, "Nk", head_dim))
    keys = k.shape[2]
    check_tensor("v", v, (batch, heads, keys, "Dv"))
    check_key_mask(key_mask, batch, keys)


def check_key_mask(key_mask: Any, batch: int, keys: int) -> None:
    """Raises an error unless `key_mask` is None or boolean (B,Nk)."""
    if key_mask is not None:
        check_tensor("key_mask", key_mask, (batch, keys), torch.bool, hint=": it is True for the keys to keep")
