"""Measurements: time, memory, FLOPs, parameters, and the machine they were made on."""

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
    """Seconds of one call: the median and quartiles (`low`, `high`) of the repetitions."""

    median: float
    low: float
    high: float
    repeats: int


def time_interleaved(calls: Mapping[str, Callable[[], Any]], repeats: int = 11, warmup: int = 2) -> dict[str, Timing]:
    """Times calls in rounds a b c a b c ..., so that slow phases of the machine affect all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(-warmup, repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if index >= 0:
                seconds[name].append(elapsed)
    return {name: _timing(values) for name, values in seconds.items()}


def _timing(values: list[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Timing(median, low, high, len(values))


def gemm(size: int = 2048) -> tuple[Callable[[], Any], int]:
    """A large fp32 matrix product as a call, and its FLOPs."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return lambda: a @ b, 2 * size**3


def gemm_limit(repeats: int = 7) -> float:
    """FLOPs per second of the product of `gemm` on this machine now: an upper limit for any fp32 model."""
    product, count = gemm()
    return count / time_interleaved({"gemm": product}, repeats)["gemm"].median


def cache_penalty(elements: int = 1 << 18, repeats: int = 31) -> float:
    """Slowdown of an operation when half of its input was written by another core; 1 with one thread.

    Threads split a tensor into equal parts. There are two windows, and half of the second is also in the first. When
    the second window is updated, this half is read by another core than the one that wrote it while updating the first.
    Cores without a common cache pay this penalty in every step of a model. The host may move a virtual machine to cores
    with or without a common cache within minutes.
    """
    window = torch.zeros(elements + elements // 2)
    first, second = window[:elements], window[elements // 2 :]

    def seconds(written: Tensor, read: Tensor) -> float:
        times = []
        for _ in range(repeats):
            written.add_(1)
            start = time.perf_counter()
            read.add_(1)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return seconds(first, second) / seconds(first, first)


def parameters(module: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def flops(module: nn.Module, *inputs: Any) -> dict[str, int]:
    """FLOPs of the matrix products and convolutions in one forward call, by module path ('' is the whole module).

    A multiplication and an addition count as two FLOPs.
    """
    with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter, torch.no_grad():
        module(*inputs)
    root = type(module).__name__
    counts = {path: sum(ops.values()) for path, ops in counter.get_flop_counts().items()}
    by_path = {
        path.removeprefix(root).lstrip("."): count for path, count in counts.items() if path.split(".")[0] == root
    }
    return {**by_path, "": counter.get_total_flops()}


def _attention_flops(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


# torch's counter knows the fused attention kernels of CUDA, but not the CPU kernel. The keys are operator packets, not
# overloads.
_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


def peak_memory() -> int:
    """The peak resident memory of this process so far, in bytes."""
    try:  # VmHWM starts at 0 with the program; getrusage on Linux starts at the peak of the parent process
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_memory() -> int | None:
    """Bytes that can be allocated now; None if the system does not report it."""
    try:
        with open("/proc/meminfo") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None


def fingerprint() -> dict[str, Any]:
    """The hardware, thread count and versions that a measured time depends on."""
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


def describe_hardware(machine: Mapping[str, Any]) -> str:
    """Threads and processor of a fingerprint, as in headings: 2 threads, AMD EPYC."""
    return f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}, {machine['processor']}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
