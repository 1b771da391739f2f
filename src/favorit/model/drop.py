"""Dropout and stochastic depth.

They draw from the global generator, except where a batch is divided between threads (`model/shares.py`): each share then has a generator
of its own, or what is dropped would depend on which thread comes first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_own = threading.local()


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """What this thread drops is a function of `seed` here."""
    _own.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _own.generator = None


def _generator() -> torch.Generator | None:
    return None if torch.compiler.is_compiling() else getattr(_own, "generator", None)


class Dropout(nn.Dropout):
    """x -> x mask / (1 - p) in training, each number of the mask being 1 with probability 1 - p, else 0."""

    def forward(self, x: Tensor) -> Tensor:
        own = _generator()
        if own is None or not (self.training and self.p):
            return super().forward(x)
        return x * torch.empty_like(x).bernoulli_(1 - self.p, generator=own).div_(1 - self.p)


class DropPath(nn.Module):
    """Stochastic depth: the whole branch of an image is left out with probability p, and scaled by 1/(1-p) otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p):
            return x
        keep = torch.empty(x.shape[0], *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * keep.bernoulli_(1 - self.p, generator=_generator()).div_(1 - self.p)


def drops(module: nn.Module) -> bool:
    """Whether a forward call of `module` draws what to leave out."""
    return any(isinstance(part, Dropout | DropPath) and part.training and part.p > 0 for part in module.modules())
