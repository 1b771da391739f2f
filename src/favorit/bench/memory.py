"""The peak tensor memory of a call, and a check that a size fits before anything of that size is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from favorit import measure
from favorit.errors import FavoritError


def peak_bytes(call: Callable[[], Any]) -> int:
    """The peak bytes of tensor storage that a call allocates. Storage that existed before the call is not counted."""
    with _LiveStorage() as storage:
        call()
    return storage.peak


def check_fits(what: str, count: int, needed: Callable[[int], float]) -> None:
    """Raises an error if `needed(count)` bytes exceed free memory. The error names the largest count that fits.

    `needed` must increase with the count.
    """
    free = measure.free_memory()
    if free is None or needed(count) <= free:
        return
    fits, too_many = 0, count
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if needed(middle) <= free:
            fits = middle
        else:
            too_many = middle
    raise FavoritError(
        f"{what}={count} needs {needed(count) / 2**30:.1f} GiB and {free / 2**30:.1f} are free: "
        f"at most {fits} {what} fit, all else equal"
    )


def fit_quadratic(small: int, at_small: float, large: int, at_large: float) -> Callable[[int], float]:
    """n -> a n + b n^2 with b >= 0, fitted to the bytes at two sizes. An n x n buffer gives b > 0."""
    b = max(0.0, (at_large / large - at_small / small) / (large - small)) if large > small else 0.0
    a = at_large / large - b * large
    return lambda n: a * n + b * n * n


class _LiveStorage(TorchDispatchMode):
    """Adds the bytes of each new storage that an operation returns, and subtracts them when it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.total = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import weakref

        inputs = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in inputs and storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                self.total += storage.nbytes()
                self.peak = max(self.peak, self.total)
                weakref.finalize(storage, self._release, storage._cdata)
        return out

    def _release(self, key: int) -> None:
        self.total -= self.live.pop(key, 0)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
