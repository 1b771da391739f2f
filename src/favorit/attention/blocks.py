"""What the fast paths share: batches cut into blocks that stay in cache, and gradients written where they are read.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def slices(length: int, size: int) -> list[slice]:
    """0..length in pieces of `size`, the last one shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def even(length: int, most: int) -> int:
    """The size of as few pieces of 0..length as can be, at most `most` each and as even as can be."""
    pieces = -(-length // max(most, 1))
    return -(-length // pieces)


class Projected(NamedTuple):
    """q (B,H,Nq,D), k and v (B,H,N,D), and the one tensor that they are views of, where they are: (B,N,3HD) in any shape.

    An autograd function of these gives the gradient of the product as a whole: those of three views would be put together in a copy.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    product: Tensor | None

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> Projected:
        # What views of views begin with; that these are its thirds, or the first tokens of them, is seen from where they lie.
        product = k._base
        if product is None or not product.is_contiguous() or product.numel() != 3 * k.numel() or q.shape[2] > k.shape[2]:
            return cls(q, k, v, None)
        for part, expected in zip((q, k, v), _thirds(product.detach(), k.shape, q.shape[2]), strict=True):
            if part._base is not product or _place(part) != _place(expected):
                return cls(q, k, v, None)
        return cls(q.detach(), k.detach(), v.detach(), product)


class Gradients:
    """Room for the gradients of `Projected`, and how an autograd function of it returns them."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, product: Tensor | None) -> None:
        self.product = None if product is None else torch.empty_like(product)
        if self.product is None:
            self.q, self.k, self.v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        else:
            self.q, self.k, self.v = _thirds(self.product, k.shape, q.shape[2])
            _thirds(self.product, k.shape, k.shape[2])[0][:, :, q.shape[2] :].zero_()

    def returned(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        return (self.q, self.k, self.v, None) if self.product is None else (None, None, None, self.product)


def _thirds(product: Tensor, shape: torch.Size, queries: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first tokens (B,H,Nq,D) of the first third, and the others (B,H,N,D)."""
    batch, heads, tokens, width = shape
    q, k, v = product.view(batch, tokens, 3, heads, width).transpose(1, 3).unbind(2)
    return q[:, :, :queries], k, v


def _place(x: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return x.data_ptr(), x.shape, x.stride()
