"""Small products on one thread.

torch runs small elementwise operations on the calling thread, but MKL splits batched products of any size between
threads. Their results must then move between the caches of the cores. On one thread, linear attention with 128 tokens
at batch 1 takes 86 us instead of 125 if the cores share no cache, and 86 instead of 85 if they do.

`torch.set_num_threads` is not used, although it makes the same MKL call: it also changes the number of threads of the
process, which new threads take over, and SDPA at 128 tokens is 25 % slower after it (LOG.md, 2026-11-16). Calling MKL
directly takes 0.3 us.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def find_mkl_limiter(library: Callable[[str], Any] = ctypes.CDLL) -> Callable[[int], int] | None:
    """MKL's function that limits the threads of calls from this thread (0: no limit) and returns the previous limit.

    None if torch has no MKL.
    """
    try:
        limiter = library("libtorch_cpu.so").MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None
    limiter.argtypes = [ctypes.c_int]
    limiter.restype = ctypes.c_int
    return limiter


limit_mkl_threads = find_mkl_limiter()


def on_one_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """function(*arguments) with its products on the calling thread. The backward pass is not limited."""
    assert limit_mkl_threads is not None
    previous = 0
    try:  # `try` precedes the first MKL call, because an interrupt may arrive between any two statements
        previous = limit_mkl_threads(1)
        return function(*arguments)
    finally:
        limit_mkl_threads(previous)
