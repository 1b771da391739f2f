"""A check of the size of each new tensor before torch allocates it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from favorit import measure
from favorit.errors import FavoritError

# Smaller tensors are not checked: reading the free memory takes longer than allocating them.
SMALLEST_CHECKED = 1 << 26
# The largest number of bytes that torch can address.
LARGEST = 2**63 - 1


def within_memory(what: str) -> AbstractContextManager[Any]:
    """A context in which `what` is built. A tensor that does not fit into free memory raises an error that names it.

    Without the check, a size with a few zeros too many ends in an error of torch's allocator, or the system ends the
    process when the memory is filled. On other devices than the CPU (also `meta`), nothing is checked.
    """
    return _Check(what) if torch.get_default_device().type == "cpu" else nullcontext()


def _size_of_arange(*bounds: float) -> tuple[int, ...]:
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    return (max(0, math.ceil((end - start) / step)),)


def _given_size(*size: Any) -> tuple[int, ...]:
    return tuple(size[0]) if size and isinstance(size[0], Sequence) else size


# The functions that allocate memory of a given size, and how to find this size in their positional arguments.
_SIZES: dict[Callable[..., Any], Callable[..., tuple[int, ...]]] = {
    torch.arange: _size_of_arange,
    torch.empty: _given_size,
    torch.eye: lambda n, m=None: (n, n if m is None else m),
    torch.full: lambda size, value: tuple(size),
    torch.linspace: lambda start, end, steps: (steps,),
    torch.ones: _given_size,
    torch.rand: _given_size,
    torch.randn: _given_size,
    torch.zeros: _given_size,
}


class _Check(TorchFunctionMode):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if function in _SIZES and torch.device(given.get("device") or "cpu").type == "cpu":
            size = _given_size(given["size"]) if "size" in given else _SIZES[function](*args)
            self._check(size, given.get("dtype") or torch.get_default_dtype())
        return function(*args, **given)

    def _check(self, size: tuple[int, ...], dtype: torch.dtype) -> None:
        needed = math.prod(size) * dtype.itemsize
        if needed < SMALLEST_CHECKED:
            return
        free = measure.free_memory()
        bound = LARGEST if free is None else free
        if needed > bound:
            raise FavoritError(
                f"{self.what}: a tensor of {' x '.join(map(str, size))} values needs {needed / 2**30:,.1f} GiB "
                f"and {bound / 2**30:,.1f} are free: choose smaller sizes"
            )
