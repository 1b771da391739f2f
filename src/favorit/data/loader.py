"""Batches from a data set in memory.

The order of the samples in epoch e is one permutation, a function of (seed, e) alone. A run therefore sees the same
batches after a resume in the middle of an epoch, and on any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit import seeds
from favorit.data.augment import Augment
from favorit.data.images import Images
from favorit.data.preprocess import Preprocess
from favorit.errors import FavoritError


@dataclass(frozen=True)
class Batch:
    """`images` float32 (B, C, H, W), normalized; `targets` int64 (B,), or float32 (B, classes) if labels are mixed.

    `indices` are the indices of the samples in the data set; `total` counts the samples of all ranks. Divide a loss
    summed over the batch by total / world. Its gradient, averaged over ranks, then equals that of one process, even if
    the ranks have batches of different sizes.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
    total: int


class Loader:
    """Batches of `images` at `indices`. With `world` ranks, each loads a contiguous share of every batch, of equal size
    in all full batches. `classes` is the width of mixed targets, by default the greatest label + 1.
    """

    def __init__(
        self,
        images: Images,
        indices: Tensor | None = None,
        *,
        batch_size: int,
        seed: int,
        preprocess: Preprocess,
        shuffle: bool = False,
        drop_last: bool = False,
        augment: Augment | None = None,
        classes: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.images = images
        self.indices = torch.arange(len(images)) if indices is None else indices
        self.batch_size = batch_size
        self.seed = seed
        self.preprocess = preprocess
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.augment = augment
        self.rank = rank
        self.world = world
        if batch_size < 1 or batch_size % world:
            raise FavoritError(f"batch_size={batch_size} cannot be shared equally between {world} processes")
        if len(self.indices) == 0:
            raise FavoritError("no images to load")
        if len(self) == 0:
            raise FavoritError(
                f"batch_size={batch_size} with drop_last leaves no batch: there are only {len(self.indices)} images"
            )
        self.classes = classes or int(images.labels.max()) + 1
        if augment:
            augment.check_classes(self.classes)
            augment.check_size(*images.images.shape[2:])

    def __len__(self) -> int:
        """The number of batches in an epoch, the same for every rank."""
        full, rest = divmod(len(self.indices), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number`, starting with batch `start`."""
        order = self.indices
        if self.shuffle:
            order = order[torch.randperm(len(order), generator=seeds.generator(self.seed, "order", number))]
        tables = self.augment.draw(self.seed, number, len(self.images)) if self.augment else []
        for batch in range(start, len(self)):
            yield self._batch(order[batch * self.batch_size : (batch + 1) * self.batch_size], tables)

    def _batch(self, samples: Tensor, tables: list[Tensor]) -> Batch:
        total = len(samples)
        first, last = total * self.rank // self.world, total * (self.rank + 1) // self.world
        own = samples[first:last]
        mixes = self.augment is not None and self.augment.mixes
        # The mixing partner is the next sample of the whole batch, so this rank loads one more sample.
        taken = torch.cat([own, samples[last % total].view(1)]) if mixes else own
        pixels = self.images.images.flatten(1).index_select(0, taken).view(-1, *self.images.images.shape[1:])
        targets = self.images.labels[taken]
        if self.augment:
            rows = [table.index_select(0, taken) for table in tables]
            pixels = self.augment.spatial(pixels, targets, rows, self.preprocess.mean_color)
        images = self.preprocess(pixels)
        if self.augment and mixes:
            images, weight = self.augment.mix(images, targets[:-1], [row[:-1] for row in rows])
            one_hot = F.one_hot(targets, self.classes).float()
            targets = torch.lerp(one_hot[1:], one_hot[:-1], weight[:, None])
        return Batch(images, targets, own, total)
