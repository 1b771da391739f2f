"""Deterministic algorithms for the duration of a run.

On a CPU runs are bit-equal at equal threads without it. On CUDA it is unverified: it was never run here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.backends import cudnn

# cuBLAS reads it when it is first used: a process that used CUDA before must be started with it.
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """If wanted, torch, cuDNN and cuBLAS use deterministic algorithms inside, and an operation that has none is an
    error.

    The settings from before are restored after.
    """
    if not wanted:
        yield
        return
    mode = torch.get_deterministic_debug_mode()
    chosen, benchmark = cudnn.deterministic, cudnn.benchmark
    workspace = os.environ.get(CUBLAS)
    try:
        os.environ.setdefault(CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.deterministic, cudnn.benchmark = chosen, benchmark
        if workspace is None:
            os.environ.pop(CUBLAS, None)
