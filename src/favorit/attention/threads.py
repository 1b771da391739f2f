"""Work on few numbers, kept on one thread.

torch runs elementwise operations on fewer than GRAIN numbers on the calling thread. MKL divides batches of products
between threads however small they are: what the one wrote the other core has to fetch, and back for the next operation
(LOG.md). `torch.set_num_threads` limits MKL by the same call, for the thread that makes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

GRAIN = 1 << 15


def _limiter() -> Callable[[int], int] | None:
    """(most threads of MKL for calls of this thread, 0 for no limit) -> the limit before; None where torch comes
    without MKL.
    """
    try:
        limit = ctypes.CDLL("libtorch_cpu.so").MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None
    limit.argtypes, limit.restype = [ctypes.c_int], ctypes.c_int
    return limit


_limit = _limiter()


def is_tiny(features: int, q: Tensor, v: Tensor) -> bool:
    """Whether products of so many features, q and v are worth keeping on this thread, as torch divides nothing else of
    that size.

    A compiler decides for itself.
    """
    # The compiler first: one that met the sizes would compile once for each answer.
    known = not torch.compiler.is_compiling() and _limit is not None and q.is_cpu
    return known and features < GRAIN and q.numel() < GRAIN and v.numel() < GRAIN


def alone(work: Callable[..., Result], *arguments: Any) -> Result:
    """work(*arguments), the products it makes on the calling thread; not those that autograd makes going back."""
    assert _limit is not None
    before = 0
    try:  # from the first call on: an interrupt may come between any two
        before = _limit(1)
        return work(*arguments)
    finally:
        _limit(before)
