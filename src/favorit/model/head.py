"""Heads: tokens to logits. The final normalisation is part of the head.

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
    """(B, prefix + N, C) -> (B, classes). `prefix` is the number of extra tokens that it needs before the grid.

    `reads` is the number of leading tokens that it reads, None for all. The last block computes only those.
    """

    prefix: int = 0
    reads: int | None = None

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Logits."""


HEADS: Registry[Head] = Registry("head", context=("dim", "classes", "tokens", "dropout"))


@HEADS.register("cls")
class ClassToken(Head):
    """W norm(x_0), where x_0 is the class token, placed before the grid."""

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
    """W sum_n p_n y_n, y = norm(x), p = softmax of w . y_n over the tokens, w learned."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.norm, self.score, self.out = nn.LayerNorm(dim), nn.Linear(dim, 1, bias=False), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.out((self.score(y).softmax(1) * y).sum(1))


@HEADS.register("mlp", rest="widths")
class Mlp(Head):
    """Dense layers with GELU and dropout on the flattened tokens, for one image size: `mlp(2048, 1024)`."""

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
                f"head mlp got {x.shape[1]} tokens and was built for {self.tokens}: build the model for this image_size"
            )
        return self.layers(x)
