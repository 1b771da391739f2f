"""Heads: tokens to logits. The final normalization is part of the head.

Shapes: B batch, N tokens, C model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from favorit.allocation import within_memory
from favorit.errors import FavoritError
from favorit.spec import PositiveInt, Registry


class Head(nn.Module, ABC):
    """(B, prefix + N, C) -> (B, classes). `prefix` is the number of extra tokens that the head needs before the grid.

    `reads` is the number of leading tokens that the head uses, None for all. The last block computes only those.
    """

    prefix: int = 0
    reads: int | None = None

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Logits."""


HEADS: Registry[Head] = Registry("head", context=("dim", "classes", "tokens", "dropout"), within=within_memory)


@HEADS.register("cls")
class ClassToken(Head):
    """logits = W norm(x_0) + b: x_0 is the class token, placed before the grid; O(C classes).

    Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, arXiv 2010.11929.
    """

    prefix = 1
    reads = 1

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x[:, 0]))


@HEADS.register("mean")
class Mean(Head):
    """logits = W norm(mean_n x_n) + b: uses the mean of all tokens; O(N C).

    Source: Beyer et al. 2022, Better plain ViT baselines for ImageNet-1k, arXiv 2205.01580.
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x.mean(1)))


@HEADS.register("seqpool")
class SequencePool(Head):
    """logits = W sum_n p_n y_n + b, y = norm(x), p = softmax(w y): w is a learned score of each token; O(N C).

    Source: Hassani et al. 2021, Escaping the Big Data Paradigm with Compact Transformers, arXiv 2104.05704.
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.norm, self.score, self.out = nn.LayerNorm(dim), nn.Linear(dim, 1, bias=False), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.out((self.score(y).softmax(1) * y).sum(1))


@HEADS.register("mlp", rest="widths")
class Mlp(Head):
    """y_l = gelu(W_l y_(l-1) + b_l): dense layers on the flattened tokens y_0, with dropout; O(N C width).

    `mlp(2048, 1024)` has two hidden layers. The head is built for one image size.

    Source: Sun and Shah (report 4 of five).
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
                f"head mlp got {x.shape[1]} tokens and was built for {self.tokens}: build the model for this image_size"
            )
        return self.layers(x)
