"""Precision of attention: computation in fp32 or fp64, and the dtype of the output under autocast. For all devices.

Softmax and the bf16 implementations in `cpu/` also compute in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from favorit.autocast import is_autocast_enabled, without_autocast

WIDE = (torch.float32, torch.float64)
HALF = (torch.bfloat16, torch.float16)


def output_dtype(v: Tensor) -> torch.dtype:
    """The dtype of a mixer's output: the autocast dtype if autocast is on, as in torch's attention, or that of v.

    Autocast does not change fp64.
    """
    uses_autocast = v.dtype != torch.float64 and is_autocast_enabled(v)
    return torch.get_autocast_dtype(v.device.type) if uses_autocast else v.dtype


def widened(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def is_full_precision(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True if all are fp32 or all are fp64, with autocast off."""
    dtype = q.dtype
    return dtype in WIDE and k.dtype is dtype and v.dtype is dtype and not is_autocast_enabled(q)


@contextmanager
def full_precision(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """The tensors in fp32 or fp64, contiguous, with autocast off. In half precision, sums of many features overflow.

    A tensor that is passed twice, as keys and as values, is converted once.
    """
    wide = widened(tensors[0].dtype)
    with without_autocast(tensors[0]):
        converted = {id(tensor): tensor.to(wide, memory_format=torch.contiguous_format) for tensor in tensors}
        yield [converted[id(tensor)] for tensor in tensors]


def in_full_precision(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
    """attend(q, k, v, *options) computed in fp32 or fp64, returned in `output_dtype(v)`."""
    if is_full_precision(q, k, v):
        return attend(q, k, v, *options)
    dtype = output_dtype(v)
    with full_precision(q, k, v) as wide:
        return attend(*wide, *options).to(dtype)
