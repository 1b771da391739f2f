"""Batches from a data set in memory. Epoch e visits the samples in the order of one permutation, a function of (seed,
e) alone: a run resumed at batch b of the epoch, or another number of processes, sees the same batches.
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
    """`images` float32 (B, C, H, W), normalised; `targets` int64 (B,), or float32 (B, classes) where labels are mixed.

    `indices` are the samples' positions in the data set; `total` counts the rows over all ranks. A loss summed over the
    rows and divided by total / world has the gradient of one process after averaging, even where the ranks' rows differ
    in number.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
    total: int


class Loader:
    """Batches of `images` at the positions `indices`. With `world` ranks each takes its contiguous share of every
    batch, equal in all full batches. `classes` is the width of mixed targets; the greatest label + 1 without it.
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
        self.images, self.batch_size, self.seed, self.shuffle, self.drop_last = (
            images,
            batch_size,
            seed,
            shuffle,
            drop_last,
        )
        self.indices = torch.arange(len(images)) if indices is None else indices
        self.preprocess, self.augment, self.rank, self.world = preprocess, augment, rank, world
        if batch_size < 1 or batch_size % world:
            raise FavoritError(f"batch_size={batch_size} cannot be shared equally between {world} processes")
        if len(self.indices) == 0:
            raise FavoritError("there are no images to load")
        if len(self) == 0:
            raise FavoritError(
                f"batch_size={batch_size}: more than the {len(self.indices)} images there are, and the last batch is dropped"
            )
        self.classes = classes or int(images.labels.max()) + 1
        if augment:
            augment.check_classes(self.classes)

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        whole, rest = divmod(len(self.indices), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` from batch `start` on."""
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
        # A mixed sample's partner is the next one of the whole batch, so one row more than the share is prepared.
        taken = torch.cat([own, samples[last % total].view(1)]) if mixes else own
        pixels = self.images.images.flatten(1).index_select(0, taken).view(-1, *self.images.images.shape[1:])
        targets = self.images.labels[taken]
        if self.augment:
            rows = [table.index_select(0, taken) for table in tables]
            pixels = self.augment.spatial(pixels, targets, rows, self.preprocess.mean_colour)
        images = self.preprocess(pixels)
        if self.augment and mixes:
            images, weight = self.augment.mix(images, targets[:-1], [row[:-1] for row in rows])
            hot = F.one_hot(targets, self.classes).float()
            targets = torch.lerp(hot[1:], hot[:-1], weight[:, None])
        return Batch(images, targets, own, total)
