"""Splitting batches into blocks whose intermediate results stay in cache.

A block is some heads of some images, or some tokens of a single head. Shapes: B batch, H heads, N tokens, M features,
G heads of images in a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from favorit.attention.cpu.limits import Limits
from favorit.attention.dtypes import WIDE


def chunks(length: int, size: int) -> list[slice]:
    """0..length in chunks of `size`; the last one may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def even_chunk_size(length: int, most: int) -> int:
    """The size of chunks of 0..length: at most `most`, as few chunks as possible, of nearly equal size."""
    count = -(-length // max(most, 1))
    return -(-length // count)


def block_sizes(heads: int, tokens: int, features: int, dtype: torch.dtype, limits: Limits) -> tuple[int, int]:
    """(heads, tokens) of one block: the most whole heads that fit, or the most tokens of a single head.

    A block has at least `limits.shortest_block` tokens, or all of them if there are fewer.
    """
    elements = limits.block_elements if dtype in WIDE else limits.bf16_block_elements
    block_heads = even_chunk_size(heads, elements // (tokens * features))
    block_tokens = min(tokens, elements // (block_heads * features))
    return block_heads, max(min(limits.shortest_block, tokens), block_tokens)


def blocks_of_heads(heads: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Each tensor (B,H,...) in blocks (G,...) of `heads` heads. Blocks of contiguous tensors are views, so results can
    be written to them. None stays None.
    """
    blocks = [repeat(None) if x is None else x.contiguous().flatten(0, 1).split(heads) for x in tensors]
    return zip(*blocks, strict=False)


def slice_tokens(x: Tensor, tokens: slice) -> Tensor:
    """x[:, tokens] of (G,N,...), or x itself for all tokens: a view costs as much as a small operation."""
    return x if tokens.stop - tokens.start == x.shape[1] else x[:, tokens]


def buffer_for(buffer: Tensor, x: Tensor) -> Tensor:
    """The part (G,N,M) of a block's buffer (heads x tokens, M) for the features of x (G,N,...)."""
    heads, tokens = x.shape[:2]
    return buffer[: heads * tokens].view(heads, tokens, -1)
