"""Heads: tokens to logits. Each owns the last normalisation.

Shapes: B batch, N tokens, C model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from favorit.errors import FavoritError
from favorit.spec import PositiveInt, Registry


class Head(nn.Module, ABC):
    """(B, prefix + N, C) -> (B, classes). `prefix` is how many tokens of its own it wants before the grid.

    `reads` is how many of the first tokens it reads, None for all: the last block computes no others.
    """

    prefix: int = 0
    reads: int | None = None

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Logits."""


HEADS: Registry[Head] = Registry("head", context=("dim", "classes", "tokens", "dropout"))


@HEADS.register("cls")
class ClassToken(Head):
    """W norm(x_0): reads the class token, which is put before the grid."""

    prefix = 1
    reads = 1

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x[:, 0]))


@HEADS.register("mean")
class Mean(Head):
    """W norm(mean_n x_n)."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x.mean(1)))


@HEADS.register("seqpool")
class SequencePool(Head):
    """W sum_n p_n y_n, y = norm(x), p = softmax over tokens of a learned score of y."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.norm, self.score, self.out = nn.LayerNorm(dim), nn.Linear(dim, 1, bias=False), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.out((self.score(y).softmax(1) * y).sum(1))


@HEADS.register("mlp", rest="widths")
class Mlp(Head):
    """Dense layers with GELU and dropout on the flattened tokens: `mlp(2048, 1024)`. Its size is that of one image
    size.
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        tokens: int,
        dropout: float,
        widths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (2048, 1024),
    ) -> None:
        super().__init__()
        self.tokens = tokens
        layers: list[nn.Module] = [nn.LayerNorm(dim), nn.Flatten(), nn.Dropout(dropout)]
        for before, after in zip((tokens * dim, *widths), widths, strict=False):
            layers += [nn.Linear(before, after), nn.GELU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.tokens:
            raise FavoritError(
                f"head mlp was built for {self.tokens} tokens and got {x.shape[1]}: build the model for this image_size"
            )
        return self.layers(x)
