"""Stems: pixels to tokens.

Shapes: B batch, K image channels, N tokens, C model width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from favorit.allocation import within_memory
from favorit.errors import FavoritError
from favorit.grids import Grid
from favorit.model.activation import Activation, activation
from favorit.spec import Pixels, Probability, Registry, Width

Channels = Annotated[tuple[Width, ...], Field(min_length=1)]
PatchSize = Annotated[
    tuple[Pixels, Pixels], BeforeValidator(lambda size: (size, size) if isinstance(size, int) else size)
]


class Stem(nn.Module, ABC):
    """(B,K,rows,columns) -> tokens (B,N,C) on a grid."""

    @abstractmethod
    def grid(self, image_size: Grid) -> Grid:
        """The token grid of an image; raises an error if the image does not fit."""

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """The tokens, in row-major order of the grid."""

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """(tokens, their grid)."""
        grid = self.grid(tuple(images.shape[-2:]))  # `grid` goes first: it raises readable errors, `embed` does not
        return self.embed(images), grid


STEMS: Registry[Stem] = Registry("stem", context=("image_channels", "dim", "image_size"), within=within_memory)


@STEMS.register("patch")
class Patch(Stem):
    """x_n = W patch_n + b: a linear map of each patch, as a strided convolution; O(K C) per pixel.

    `crop` drops rows and columns beyond the last whole patch.

    Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, arXiv 2010.11929.
    """

    def __init__(self, image_channels: int, dim: int, size: PatchSize = (4, 4), crop: bool = False) -> None:
        super().__init__()
        self.size, self.crop = size, crop
        self.projection = nn.Conv2d(image_channels, dim, size, stride=size)

    def grid(self, image_size: Grid) -> Grid:
        rows, columns = (length // side for length, side in zip(image_size, self.size, strict=True))
        exact = (rows * self.size[0], columns * self.size[1]) == image_size
        if not (rows and columns and (exact or self.crop)):
            raise FavoritError(
                f"stem: patch size {self.size} does not divide the image {image_size}: "
                "choose a divisor, set crop=True, or resize the data"
            )
        return rows, columns

    def embed(self, images: Tensor) -> Tensor:
        return self.projection(images).flatten(2).mT


@STEMS.register("values")
class Values(Stem):
    """x_n = w_k value + b_k + table[row, column]: one token for each channel value; O(K C) per pixel.

    The channels of a pixel share its position. The table encodes the position, so build the model with position=none.
    The grid is (K rows, columns): the channels are stacked along the rows.

    Source: Clepper et al. (report 2 of five); the sizes are ours.
    """

    def __init__(self, image_channels: int, dim: int, image_size: Grid) -> None:
        super().__init__()
        self.channels, self.image_size = image_channels, image_size
        self.weight = nn.Parameter(torch.randn(image_channels, 1, dim))
        self.bias = nn.Parameter(torch.zeros(image_channels, 1, dim))
        self.table = nn.Parameter(torch.empty(math.prod(image_size), dim))
        nn.init.trunc_normal_(self.table, std=0.02)

    def grid(self, image_size: Grid) -> Grid:
        if image_size != self.image_size:
            raise FavoritError(
                f"stem: values was built for images {self.image_size}, not {image_size}: build the model for this "
                "image_size"
            )
        return self.channels * image_size[0], image_size[1]

    def embed(self, images: Tensor) -> Tensor:
        return (images.flatten(2)[..., None] * self.weight + self.bias + self.table).flatten(1, 2)


@STEMS.register("conv")
class Conv(Stem):
    """y_l = act(norm(conv_l(y_(l-1)))): 3x3 convolutions with batch norm; O(9 c_(l-1) c_l) per pixel and layer.

    2x2 max pooling follows the last convolution (`pool=last`) or every one (`pool=each`). Each pixel of the feature map
    is a token. With `tokens=1`, a fully connected layer of `width` (default: the model's dim) with activation and
    dropout maps the flattened feature map to a single token. Attention is then trivial.

    Source: Hassani et al. 2021, Escaping the Big Data Paradigm with Compact Transformers, arXiv 2104.05704; a single
    token from Clepper et al. (report 2 of five).
    """

    def __init__(
        self,
        image_channels: int,
        dim: int,
        image_size: Grid,
        channels: Channels = (64, 128, 256),
        act: Activation = "relu",
        pool: Literal["last", "each"] = "last",
        tokens: Annotated[int, Field(ge=1, le=1)] | None = None,
        width: Width | None = None,
        dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        self.halvings = len(channels) if pool == "each" else 1
        self.single = tokens is not None
        layers: list[nn.Module] = []
        for index, (before, after) in enumerate(zip((image_channels, *channels), channels, strict=False)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), activation(act)]
            if pool == "each" or index == len(channels) - 1:
                layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers)
        self.feature_map = self._feature_map(image_size)
        self.projection: nn.Module
        if self.single:
            hidden = width or dim
            last = nn.Identity() if hidden == dim else nn.Linear(hidden, dim)
            self.projection = nn.Sequential(
                nn.Linear(channels[-1] * math.prod(self.feature_map), hidden),
                activation(act),
                nn.Dropout(dropout),
                last,
            )
        elif width is not None:
            raise FavoritError(
                f"stem: width={width} is not valid without tokens=1: it is the hidden width for a single token"
            )
        else:
            self.projection = nn.Sequential(nn.Linear(channels[-1], dim), nn.Dropout(dropout))

    def grid(self, image_size: Grid) -> Grid:
        feature_map = self._feature_map(image_size)
        if self.single and feature_map != self.feature_map:
            raise FavoritError(
                f"stem: tokens=1 was built for a feature map {self.feature_map}, but the image {image_size} gives "
                f"{feature_map}: build the model for this image_size"
            )
        return (1, 1) if self.single else feature_map

    def embed(self, images: Tensor) -> Tensor:
        features = self.layers(images)
        return self.projection(features.flatten(1)[:, None] if self.single else features.flatten(2).mT)

    def _feature_map(self, image_size: Grid) -> Grid:
        rows, columns = (length >> self.halvings for length in image_size)
        if not (rows and columns):
            raise FavoritError(
                f"stem: the image {image_size} is too small to be halved {self.halvings} times: "
                "list fewer convolutions in channels=(...), or set pool=last"
            )
        return rows, columns


class Residual(nn.Module):
    """x -> act(norm(conv(act(norm(conv(x))))) + shortcut(x)). The first convolution has the given stride."""

    def __init__(self, before: int, after: int, stride: int, act: Activation) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            activation(act),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.branch(x) + self.shortcut(x))


@STEMS.register("resnet")
class ResNet(Stem):
    """y <- act(norm(conv(act(norm(conv(y))))) + shortcut(y)): residual blocks; O(18 c^2) per pixel and block.

    Each stage halves the image and has `blocks` residual blocks of c channels. Each pixel of the feature map is a
    token.

    Source: He et al. 2016, Deep Residual Learning for Image Recognition, arXiv 1512.03385; as the stem of a Performer
    in Sun and Shah (report 4 of five). The sizes are ours.
    """

    def __init__(
        self,
        image_channels: int,
        dim: int,
        channels: Channels = (64, 128),
        blocks: Annotated[int, Field(ge=1, le=100, strict=True)] = 1,
        act: Activation = "relu",
    ) -> None:
        super().__init__()
        self.halvings = len(channels)
        layers: list[nn.Module] = [
            nn.Conv2d(image_channels, channels[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(channels[0]),
            activation(act),
        ]
        for before, after in zip((channels[0], *channels), channels, strict=False):
            layers += [
                Residual(before if first else after, after, 2 if first else 1, act)
                for first in [True] + [False] * (blocks - 1)
            ]
        self.layers = nn.Sequential(*layers)
        self.projection = nn.Linear(channels[-1], dim)

    def grid(self, image_size: Grid) -> Grid:
        rows, columns = (-(-length // 2**self.halvings) for length in image_size)
        return rows, columns

    def embed(self, images: Tensor) -> Tensor:
        return self.projection(self.layers(images).flatten(2).mT)
