"""Blocks: attention and feed-forward network with residual connections.

Shapes: B batch, N tokens, C model width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from favorit.attention import Attention
from favorit.grids import Grid
from favorit.model.activation import Activation, activation


class Wiring(NamedTuple):
    """Where a residual block normalizes: before or after its branch. With `adds_normalized`, the skip connection adds
    the normalized input.
    """

    before: bool
    after: bool
    adds_normalized: bool = False


WIRINGS = {
    "pre": Wiring(before=True, after=False),
    "post": Wiring(before=False, after=True),
    "double": Wiring(before=True, after=True),
    "double_inner": Wiring(before=True, after=True, adds_normalized=True),
}


class DropPath(nn.Module):
    """Stochastic depth: the branch of an image is dropped with probability p, and scaled by 1/(1-p) otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p):
            return x
        keep = torch.empty(x.shape[0], *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * keep / (1 - self.p)


class Residual(nn.Module):
    """x -> after(base + drop(branch(y))), y = before(x), base = x, or y if the wiring adds the normalized input.

    If the branch returns only the first tokens, this module does too.
    """

    def __init__(self, branch: nn.Module, dim: int, norm: str, dropout: float, drop_path: float) -> None:
        super().__init__()
        wiring = WIRINGS[norm]
        self.before = nn.LayerNorm(dim) if wiring.before else nn.Identity()
        self.branch = branch
        self.drop = nn.Sequential(nn.Dropout(dropout), DropPath(drop_path))
        self.after = nn.LayerNorm(dim) if wiring.after else nn.Identity()
        self.adds_normalized = wiring.adds_normalized

    def forward(self, x: Tensor, **where: Any) -> Tensor:
        y = self.before(x)
        base = y if self.adds_normalized else x
        added = self.drop(self.branch(y, **where))
        return self.after((base if base.shape == added.shape else base[:, : added.shape[1]]) + added)


class FeedForward(nn.Sequential):
    """W2 drop(act(W1 x))."""

    def __init__(self, dim: int, hidden: int, act: Activation, dropout: float) -> None:
        super().__init__(nn.Linear(dim, hidden), activation(act), nn.Dropout(dropout), nn.Linear(hidden, dim))


class Block(nn.Module):
    """Residual attention, then a residual feed-forward network unless `mlp_dim` is 0."""

    def __init__(
        self, attention: Attention, dim: int, mlp_dim: int, norm: str, act: Activation, dropout: float, drop_path: float
    ) -> None:
        super().__init__()
        self.attention = Residual(attention, dim, norm, dropout, drop_path)
        self.feed_forward: Residual | None = None
        if mlp_dim:
            self.feed_forward = Residual(FeedForward(dim, mlp_dim, act, dropout), dim, norm, dropout, drop_path)

    def forward(self, x: Tensor, grid: Grid, prefix: int, num_queries: int | None = None) -> Tensor:
        """The tokens after this block, or the first `num_queries` of them."""
        x = self.attention(x, grid=grid, prefix=prefix, num_queries=num_queries)
        return x if self.feed_forward is None else self.feed_forward(x)
