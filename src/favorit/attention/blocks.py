"""Batches cut into blocks whose intermediate results stay in cache."""

from __future__ import annotations


def slices(length: int, size: int) -> list[slice]:
    """0..length in pieces of `size`, the last one shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def even(length: int, most: int) -> int:
    """The size of as few pieces of 0..length as can be, at most `most` each and as even as can be."""
    pieces = -(-length // max(most, 1))
    return -(-length // pieces)
