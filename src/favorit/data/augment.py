"""Augmentation of batches, `crop(4)|flip|rotate(5)|cutout(8)|mixup(0.2)`, without a Python loop over images.

Crop, flip, rotate and cutout compute no new pixel values: each output pixel is a source pixel, black, or the mean
color. They therefore transform a map of source indices, and the pixels are gathered once at the end:

    map (B,H,W) int64     0 .. HW-1 a source pixel | HW black | HW+1 the mean color
    out[b,c,i] = [pixels, 0, mean][b, c, map[b,i]]

Each sample has its own random numbers: every epoch draws a table with one row for each sample of the data set, and a
batch reads the rows of its samples. The random numbers of a sample therefore do not depend on its batch, its rank, or a
resume.

Every step has a parameter `classes`, the labels that it applies to: `flip|rotate(10, classes=(3, 5))`. Random numbers
are drawn for all samples, so that images of these classes change exactly as they would without the limit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch.nn import functional as F

from favorit import seeds
from favorit.errors import FavoritError
from favorit.spec import NonNegativeInt, Parameter, PositiveFloat, PositiveInt, Registry, parameters_of, parse_pattern

Degrees = Annotated[float, Field(gt=0, le=180)]
# Sorted, so that the order of the classes does not change the run id.
Classes = Annotated[
    tuple[NonNegativeInt, ...], Field(min_length=1), AfterValidator(lambda numbers: tuple(sorted(set(numbers))))
]


class Stage(ABC):
    """One step of the pipeline. It changes images of `classes` only, or all images if None."""

    classes: tuple[int, ...] | None = None

    def changes(self, labels: Tensor) -> Tensor:
        """(B,) bool: True if this step changes an image with that label."""
        return (
            torch.ones_like(labels, dtype=torch.bool)
            if self.classes is None
            else torch.isin(labels, torch.tensor(self.classes))
        )

    @abstractmethod
    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        """The random numbers of an epoch: (samples, k), one row for each sample."""

    def largest(self, height: int, width: int) -> tuple[str, int, int] | None:
        """(parameter, its value, the largest value that makes sense for images of this size); None without a limit."""
        return None


class Spatial(Stage):
    """Moves or covers pixels."""

    @abstractmethod
    def apply(self, map: Tensor, rows: Tensor, black: int) -> Tensor:
        """The map after this step; `black` is H*W, and `black + 1` stands for the mean color."""


class Mixing(Stage):
    """Mixes each image and its label with the next image of the batch."""

    @abstractmethod
    def apply(self, images: Tensor, partners: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(mixed images, weight (B,) of the image's own label)."""


AUGMENTS: Registry[Stage] = Registry("augmentation")
S = TypeVar("S", bound=Stage)


def augmentation(name: str) -> Callable[[type[S]], type[S]]:
    """Class decorator: registers a step by name, with its own parameters and `classes`."""

    def decorate(cls: type[S]) -> type[S]:
        def build(classes: tuple[int, ...] | None = None, **values: Any) -> Stage:
            stage = cls(**values)
            stage.classes = classes
            return stage

        build.__doc__ = cls.__doc__
        AUGMENTS.add(name, build, {**parameters_of(cls, ("self",)), "classes": Parameter(Classes | None, None)})
        return cls

    return decorate


@augmentation("crop")
class Crop(Spatial):
    """A window of the image's size, shifted by up to `padding` pixels along each axis; outside is black.

    Source: common practice for CIFAR, as in He et al. 2016, Deep Residual Learning, arXiv 1512.03385.
    """

    def __init__(self, padding: PositiveInt = 4) -> None:
        self.padding = padding

    def largest(self, height: int, width: int) -> tuple[str, int, int]:
        return "padding", self.padding, min(height, width) - 1

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        return torch.randint(-self.padding, self.padding + 1, (samples, 2), generator=generator)

    def apply(self, map: Tensor, rows: Tensor, black: int) -> Tensor:
        height, width = map.shape[1:]
        y = (torch.arange(1, height + 1) + rows[:, :1]).clamp_(0, height + 1)
        x = (torch.arange(1, width + 1) + rows[:, 1:]).clamp_(0, width + 1)
        return _look_up(map, (y * (width + 2))[:, :, None] + x[:, None, :], black)


@augmentation("flip")
class Flip(Spatial):
    """Horizontal flip with probability 1/2.

    Source: common practice.
    """

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        return torch.rand((samples, 1), generator=generator) < 0.5

    def apply(self, map: Tensor, rows: Tensor, black: int) -> Tensor:
        return torch.where(rows[:, :, None], map.flip(-1), map)


@augmentation("rotate")
class Rotate(Spatial):
    """Rotation about the center by an angle uniform in +-`degrees`, nearest pixel; outside is black.

    Source: common practice; `rotate(5)` in Bennouna et al. 2025, Hybrid Transformer Models with Performer and Regular
    Attention.
    """

    def __init__(self, degrees: Degrees = 5.0) -> None:
        self.degrees = degrees

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        angle = (2 * torch.rand(samples, generator=generator) - 1) * math.radians(self.degrees)
        # Computed here, not in `apply`: the last bit of a vectorized cosine can depend on the index in the tensor.
        return torch.stack([angle.cos(), angle.sin()], 1)

    def apply(self, map: Tensor, rows: Tensor, black: int) -> Tensor:
        height, width = map.shape[1:]
        cos, sin = rows[:, :1], rows[:, 1:]
        v = torch.arange(height) - (height - 1) / 2
        u = torch.arange(width) - (width - 1) / 2
        # Nearest pixel = floor(u + width / 2); + 1 for the border that _look_up puts around the map.
        x = ((cos * u)[:, None, :] + (sin * v + (width / 2 + 1))[:, :, None]).floor_().clamp_(0, width + 1)
        y = ((cos * v + (height / 2 + 1))[:, :, None] - (sin * u)[:, None, :]).floor_().clamp_(0, height + 1)
        return _look_up(map, torch.add(x, y, alpha=width + 2).long(), black)


@augmentation("cutout")
class Cutout(Spatial):
    """A square of `size` pixels in the mean color, centered anywhere, clipped at the edges.

    Source: DeVries and Taylor 2017, Improved Regularization of CNNs with Cutout, arXiv 1708.04552.
    """

    def __init__(self, size: PositiveInt = 8) -> None:
        self.size = size

    def largest(self, height: int, width: int) -> tuple[str, int, int]:
        return "size", self.size, min(height, width)

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        return torch.rand((samples, 2), generator=generator)

    def apply(self, map: Tensor, rows: Tensor, black: int) -> Tensor:
        inside = [
            _inside(length, (column * length).floor() - self.size // 2, torch.full_like(column, self.size))
            for length, column in zip(map.shape[1:], rows.unbind(1), strict=True)
        ]
        return map.masked_fill(inside[0][:, :, None] & inside[1][:, None, :], black + 1)


@augmentation("mixup")
class Mixup(Mixing):
    """x <- lambda x + (1 - lambda) x', lambda ~ Beta(alpha, alpha).

    Source: Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization, arXiv 1710.09412.
    """

    def __init__(self, alpha: PositiveFloat = 0.2) -> None:
        self.alpha = alpha

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        return _beta(self.alpha, samples, generator)

    def apply(self, images: Tensor, partners: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return torch.lerp(partners, images, rows[:, :, None, None]), rows[:, 0]


@augmentation("cutmix")
class Cutmix(Mixing):
    """lambda ~ Beta(alpha, alpha): pastes a rectangle of x' into x that covers 1 - lambda of the area.

    Source: Yun et al. 2019, CutMix, arXiv 1905.04899.
    """

    def __init__(self, alpha: PositiveFloat = 1.0) -> None:
        self.alpha = alpha

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        center = torch.rand((samples, 2), generator=generator)
        return torch.cat([center, (1 - _beta(self.alpha, samples, generator)).sqrt()], 1)

    def apply(self, images: Tensor, partners: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        # The label weight is the visible area. It exceeds lambda if the rectangle is clipped at an edge.
        inside = []
        for length, column in zip(images.shape[2:], rows[:, :2].unbind(1), strict=True):
            side = (rows[:, 2] * length).round()
            inside.append(_inside(length, (column * length - side / 2).round(), side))
        box = inside[0][:, :, None] & inside[1][:, None, :]
        return torch.where(box[:, None], partners, images), 1 - box.float().mean((1, 2))


def _look_up(map: Tensor, index: Tensor, black: int) -> Tensor:
    """map[b, index[b]], where index addresses the map with a black border of one pixel: (H + 2) x (W + 2)."""
    return F.pad(map, (1, 1, 1, 1), value=black).flatten(1).gather(1, index.flatten(1)).view_as(map)


def _inside(length: int, start: Tensor, size: Tensor) -> Tensor:
    """(B, length) bool: start <= position < start + size."""
    position = torch.arange(length)
    return (position >= start[:, None]) & (position < (start + size)[:, None])


def _beta(alpha: float, samples: int, generator: torch.Generator) -> Tensor:
    """(samples, 1) samples of Beta(alpha, alpha), drawn with numpy because torch's Beta takes no generator."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, (samples, 1))).float()


class Augment:
    """A pipeline. Call `tables = augment.draw(seed, epoch, samples)` once an epoch, then `spatial` and `mix` for each
    batch.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.spatial_stages = [stage for stage in stages if isinstance(stage, Spatial)]
        self.mixings = [stage for stage in stages if isinstance(stage, Mixing)]
        if list(stages) != [*self.spatial_stages, *self.mixings]:
            raise FavoritError("augmentation: mixup and cutmix come last, after crop, flip, rotate and cutout")

    @property
    def mixes(self) -> bool:
        """True if a step mixes images, so that targets become class probabilities."""
        return bool(self.mixings)

    @property
    def classes(self) -> set[int]:
        """The classes that steps are limited to; empty if no step reads labels."""
        return {number for stage in (*self.spatial_stages, *self.mixings) for number in stage.classes or ()}

    def check_classes(self, count: int) -> None:
        """Raises an error if a step is limited to a class outside 0..count-1."""
        if outside := [number for number in sorted(self.classes) if number >= count]:
            raise FavoritError(
                f"augmentation: classes={outside[0]} is not valid: the data have the classes 0..{count - 1}"
            )

    def check_size(self, height: int, width: int) -> None:
        """Raises an error if a step could move or cover a whole image of this size."""
        for stage in self.spatial_stages:
            if (limit := stage.largest(height, width)) is not None and limit[1] > limit[2]:
                name, value, most = limit
                raise FavoritError(
                    f"augmentation: {type(stage).__name__.lower()}({name}={value}) is not valid for images of "
                    f"{height} x {width}, which could vanish entirely: {name} is at most {most}"
                )

    def draw(self, seed: int, epoch: int, samples: int) -> list[Tensor]:
        """The random numbers of an epoch: one table for each step, and one that chooses among several mixings."""
        generator = seeds.generator(seed, "augment", epoch)
        tables = [stage.draw(samples, generator) for stage in (*self.spatial_stages, *self.mixings)]
        return [*tables, torch.rand(samples, generator=generator)]

    def spatial(self, images: Tensor, labels: Tensor, rows: Sequence[Tensor], mean: Tensor) -> Tensor:
        """uint8 (B, C, H, W) and labels (B,) -> uint8 (B, C, H, W).

        `rows` are the batch's rows of each table; `mean` is uint8 (C,).
        """
        if not self.spatial_stages:
            return images
        batch, channels, height, width = images.shape
        black = height * width
        map = torch.arange(black).view(1, height, width).expand(batch, -1, -1)
        for stage, own in zip(self.spatial_stages, rows, strict=False):
            changed = stage.apply(map, own, black)
            map = changed if stage.classes is None else torch.where(stage.changes(labels)[:, None, None], changed, map)
        fill = torch.stack([torch.zeros_like(mean), mean], 1).expand(batch, -1, -1)
        source = torch.cat([images.flatten(2), fill], 2)
        return source.gather(2, map.reshape(batch, 1, black).expand(-1, channels, -1)).view_as(images)

    def mix(self, images: Tensor, labels: Tensor, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """float (B + 1, C, H, W) and labels (B,) -> (B mixed images, weight (B,) of each image's own label).

        The partner of image i is image i + 1.

        With several mixings, each sample draws one of them, all equally likely. It stays unchanged if that mixing is
        limited to other classes.
        """
        own, partners = images[:-1], images[1:]
        tables = rows[len(self.spatial_stages) : -1]
        choice = (rows[-1] * len(self.mixings)).long()
        mixed, weight = own, torch.ones(len(own))
        for number, (mixing, table) in enumerate(zip(self.mixings, tables, strict=True)):
            other, other_weight = mixing.apply(own, partners, table)
            chosen = (choice == number) & mixing.changes(labels)
            if chosen.all():  # the common case, one mixing for all classes, needs no copy
                return other, other_weight
            mixed = torch.where(chosen[:, None, None, None], other, mixed)
            weight = torch.where(chosen, other_weight, weight)
        return mixed, weight


def build_augment(text: str | None) -> Augment | None:
    """The pipeline of a spec such as `crop(4)|flip|rotate(5)`; None for None, "" or "none"."""
    if text is None or not text.strip() or text.strip() == "none":
        return None
    return Augment([AUGMENTS.build(spec) for spec in parse_pattern(text)])
