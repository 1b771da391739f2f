"""Measuring: time, memory, FLOPs, parameters, and the machine they were measured on."""

from __future__ import annotations

import math
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median of repetitions, and the quartiles around it."""

    median: float
    low: float
    high: float
    repeats: int


def time_interleaved(calls: Mapping[str, Callable[[], Any]], repeats: int = 11, warmup: int = 2) -> dict[str, Timing]:
    """Times several calls in turn, a b c a b c ..., so that whatever slows the machine slows them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-warmup, repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if turn >= 0:
                seconds[name].append(elapsed)
    return {name: _timing(values) for name, values in seconds.items()}


def _timing(values: list[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Timing(median, low, high, len(values))


def gemm(size: int = 2048) -> tuple[Callable[[], Any], int]:
    """A large fp32 matrix product, to be timed beside others, and its FLOPs."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return lambda: a @ b, 2 * size**3


def gemm_limit(repeats: int = 7) -> float:
    """FLOPs per second of that product here and now: what no model can exceed."""
    product, count = gemm()
    return count / time_interleaved({"gemm": product}, repeats)["gemm"].median


def handing_over(numbers: int = 1 << 18, repeats: int = 31) -> float:
    """How many times as long an operation takes on numbers of which another thread wrote half as on its own: 1 with one
    thread.

    Threads take equal parts of a tensor, so that of two windows that overlap the second finds what was the other's.
    Cores without a common cache pay for it in every step of a model; a virtual machine may be moved from the one kind
    to the other within minutes.
    """
    window = torch.zeros(numbers + numbers // 2)
    first, second = window[:numbers], window[numbers // 2 :]

    def seconds(before: Tensor, after: Tensor) -> float:
        found = []
        for _ in range(repeats):
            before.add_(1)
            start = time.perf_counter()
            after.add_(1)
            found.append(time.perf_counter() - start)
        return statistics.median(found)

    return seconds(first, second) / seconds(first, first)


def parameters(module: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def flops(module: nn.Module, *inputs: Any) -> dict[str, int]:
    """Multiplications and additions of matrix products and convolutions in one forward call, by module path ('' is the
    whole).
    """
    with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter, torch.no_grad():
        module(*inputs)
    root = type(module).__name__
    counts = {path: sum(ops.values()) for path, ops in counter.get_flop_counts().items()}
    found = {path.removeprefix(root).lstrip("."): count for path, count in counts.items() if path.split(".")[0] == root}
    return {**found, "": counter.get_total_flops()}


def _attention_flops(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


# torch counts its fused attention on CUDA only; on CPU it is a kernel of its own. The counter looks up packets, not
# overloads.
_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    try:  # Linux carries getrusage's figure over from the parent that started the process; this one begins with the program
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_memory() -> int | None:
    """Bytes that could be allocated now; None where the system does not say."""
    try:
        with open("/proc/meminfo") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None


def fingerprint() -> dict[str, Any]:
    """The hardware, threads and versions that a time belongs to."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
