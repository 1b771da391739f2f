"""In which type a mixer computes: fp32 or better, but for products of bf16 where the processor makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

WIDE = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)
# Types that autocast makes alike.
AUTOCAST = {torch.float32, *HALVES}


def is_full_precision(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether they are in fp32 or better as they come, with autocast off."""
    dtype = q.dtype
    return (
        dtype in WIDE
        and k.dtype is dtype
        and v.dtype is dtype
        and not torch.is_autocast_enabled("cpu" if q.is_cpu else q.device.type)
    )


def widened(dtype: torch.dtype) -> torch.dtype:
    """fp32 or better."""
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def full_precision(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """The tensors in fp32 or better, with autocast off: sums of many positive features overflow in half precision.

    A tensor that comes twice, as keys and values, is converted once. What is converted is contiguous, which costs no
    second copy.
    """
    wide = widened(tensors[0].dtype)
    with torch.autocast(tensors[0].device.type, enabled=False):
        converted = {id(tensor): tensor.to(wide, memory_format=torch.contiguous_format) for tensor in tensors}
        yield [converted[id(tensor)] for tensor in tensors]


def output_dtype(v: Tensor) -> torch.dtype:
    """What a mixer returns: the autocast type where one is active, as torch's own attention does, else that of v.

    Autocast leaves fp64 as it is.
    """
    device = v.device.type
    return (
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) and v.dtype != torch.float64 else v.dtype
    )


def multiplied_in_bf16(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether they are bf16, or autocast would make them so, on a CPU that multiplies it."""
    types, dtype = {x.dtype for x in (q, k, v)}, output_dtype(v)
    alike = types == {dtype} or (torch.is_autocast_enabled(q.device.type) and types <= AUTOCAST)
    return dtype == torch.bfloat16 and alike and q.is_cpu and multiplies_bf16()


def multiplies_bf16() -> bool:
    """Whether the processor does so itself: products are then twice as fast as in fp32, else slower. A torch that
    cannot tell, or may not use oneDNN, says no.
    """
    asked: Callable[[], Mapping[str, object]] = getattr(torch.cpu, "get_capabilities", dict)
    return bool(asked().get("avx512_bf16")) and bool(torch.backends.mkldnn.enabled)
