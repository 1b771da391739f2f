"""Features of some heads and tokens at a time, for backwards by hand: views of blocks, memory for their features, sums
of gradients.

Shapes: B batch, H heads, N tokens, D head width, M features, G heads of images in a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from torch import Tensor

from favorit.attention.kernel import Lifted, Lifter


def heads_in_blocks(groups: int, *whole: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Some heads of images at a time, (B,H,...) -> (G,...): views, as what is written there must stay. None stays
    None.
    """
    cut = [repeat(None) if x is None else x.contiguous().flatten(0, 1).split(groups) for x in whole]
    return zip(*cut, strict=False)


def some_tokens(x: Tensor, tokens: slice) -> Tensor:
    """Some tokens of (G,N,...): x itself if they are all, as a view costs as much as a small operation; else those of a
    single head.
    """
    return x if tokens.stop - tokens.start == x.shape[1] else x[:, tokens]


def room_in(memory: Tensor, x: Tensor) -> Tensor:
    """The part (G,N,M) of the memory for a block (tokens, M) that the features of x (G,N,...) take up."""
    groups, tokens = x.shape[:2]
    return memory[: groups * tokens].view(groups, tokens, -1)


def lift_into(memory: Tensor, lifter: Lifter, x: Tensor, as_keys: bool) -> Lifted:
    """The features of x (G,N,D), where the kernel wants it in the memory for a block."""
    return lifter.lift(x, as_keys, room_in(memory, x))


class Totals:
    """The gradients of a kernel's parameters, summed over blocks."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._sums = [p.new_zeros(p.shape) for p in parameters if p.requires_grad]

    def add(self, gradients: Iterable[Tensor | None]) -> None:
        """Those of a block, for the parameters that need one; None where it does not depend on one."""
        for total, gradient in zip(self._sums, gradients):
            if gradient is not None:
                total += gradient

    def of_all(self) -> list[Tensor | None]:
        """One for each parameter; None where it needs none."""
        found = iter(self._sums)
        return [next(found) if p.requires_grad else None for p in self._parameters]
