"""Deterministic algorithms for the duration of a run.

On a CPU, runs with equal numbers of threads are bit-equal without them. On CUDA, this module was never run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.backends import cudnn

# cuBLAS reads this variable at its first use. If a process uses CUDA before this block, set the variable when the
# process starts.
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """If enabled, torch, cuDNN and cuBLAS use deterministic algorithms inside the block.

    An operation without a deterministic algorithm raises an error. The previous settings are restored on exit.
    """
    if not enabled:
        yield
        return
    mode = torch.get_deterministic_debug_mode()
    cudnn_before = cudnn.deterministic, cudnn.benchmark
    workspace = os.environ.get(CUBLAS)
    try:
        os.environ.setdefault(CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.deterministic, cudnn.benchmark = cudnn_before
        if workspace is None:
            os.environ.pop(CUBLAS, None)
