"""What a call has alive at once, and whether a size fits before anything of that size is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from favorit import measure
from favorit.errors import FavoritError


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most bytes of tensor storage that a call has alive at once beyond what was there before."""
    with _Storage() as storage:
        call()
    return storage.peak


def check_fits(what: str, count: int, needed: Callable[[int], float]) -> None:
    """An error that names the largest count that fits, where `needed` (bytes, growing with the count) exceeds what is
    free.
    """
    free = measure.free_memory()
    if free is None or needed(count) <= free:
        return
    fits, too_many = 0, count
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if needed(middle) <= free else (fits, middle)
    raise FavoritError(
        f"{what}={count} needs {needed(count) / 2**30:.1f} GiB and {free / 2**30:.1f} are free: at most {fits} {what} fit, all else equal"
    )


def grows_with_square(small: int, at_small: float, large: int, at_large: float) -> Callable[[int], float]:
    """a n + b n^2 through two small sizes: the bytes of something with (b > 0) or without a buffer of n x n."""
    b = max(0.0, (at_large / large - at_small / small) / (large - small)) if large > small else 0.0
    a = at_large / large - b * large
    return lambda n: a * n + b * n * n


class _Storage(TorchDispatchMode):
    """Counts storages as operations return them, and forgets them as they die."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.total = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import weakref

        given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in given and storage._cdata not in self.alive:
                self.alive[storage._cdata] = storage.nbytes()
                self.total += storage.nbytes()
                self.peak = max(self.peak, self.total)
                weakref.finalize(storage, self._forget, storage._cdata)
        return out

    def _forget(self, key: int) -> None:
        self.total -= self.alive.pop(key, 0)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
