"""Work on few numbers, kept on one thread.

torch runs elementwise operations on fewer than GRAIN numbers on the calling thread. MKL divides batches of products between threads however
small they are: what the one wrote the other core has to fetch, and back for the next operation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

GRAIN = 1 << 15


def _limiter() -> Callable[[int], int]:
    """(most threads of MKL for calls of this thread, 0 for no limit) -> the limit before. It does nothing where torch has no MKL."""
    try:
        limit = ctypes.CDLL("libtorch_cpu.so").MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return lambda threads: 0
    limit.argtypes, limit.restype = [ctypes.c_int], ctypes.c_int
    return limit


_limit = _limiter()


def is_tiny(features: int, q: Tensor, v: Tensor) -> bool:
    """Whether no operation on so many features, on q or on v would be divided. A compiler decides for itself."""
    return not torch.compiler.is_compiling() and features < GRAIN and q.numel() < GRAIN and v.numel() < GRAIN


def alone(work: Callable[..., Result], *arguments: Any) -> Result:
    """work(*arguments), its products on the calling thread."""
    before = _limit(1)
    try:
        return work(*arguments)
    finally:
        _limit(before)
