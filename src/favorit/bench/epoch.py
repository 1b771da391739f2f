"""One training epoch as users run it: the whole loop, what the input pipeline takes of it, and how far it is from the
machine's limit.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from favorit import measure
from favorit.config import RunConfig
from favorit.data import Loader, build_augment, build_preprocess, load_dataset
from favorit.errors import FavoritError
from favorit.training import Epoch, Event, train
from favorit.training.run import resolve


@dataclass(frozen=True)
class EpochCost:
    """Seconds of one epoch, the share of it that preparing batches takes, FLOPs over the matrix-product limit, and peak
    memory in bytes.

    The backward counts twice the forward; the limit is that of a 2048 x 2048 fp32 product on all threads.
    `handing_over` is what threads pay for each other's numbers (`measure.handing_over`); the memory is that of the
    first process.
    """

    images: int
    seconds: float
    pipeline_share: float
    gemm_gflops: float
    gemm_share: float
    handing_over: float
    peak_memory: int


def epoch_cost(config: RunConfig, data_dir: Path | None = None, devices: int = 1) -> EpochCost | None:
    """Trains one epoch on all training images, into a folder that is thrown away. Of several processes the first gets
    the answer.
    """
    if config.data.subset is not None:
        raise FavoritError(
            f"data.subset={config.data.subset} is not valid here: an epoch is timed on all training images"
        )
    options = config.train.replace(epochs=1, select="last", patience=None)
    config = config.replace(data=config.data.replace(validation=0, folds=None, fold=None), train=options)
    data = load_dataset(config.data.name, data_dir)
    seconds: list[float] = []

    def listen(event: Event, config: RunConfig) -> None:
        if isinstance(event, Epoch):
            seconds.append(event.train_seconds)

    with tempfile.TemporaryDirectory() as folder:
        threads = torch.get_num_threads()
        run = train(
            config, out=folder, data_dir=data_dir, devices=devices, checkpoint_seconds=float("inf"), listen=listen
        )
        if not seconds:  # another process has them
            return None
        result = run.result
    config = resolve(config, data)
    preprocess, augment = (
        build_preprocess(config.data.preprocess, data.mean, data.std),
        build_augment(config.data.augment),
    )
    loader = Loader(
        data.train,
        batch_size=options.batch_size,
        seed=config.seed,
        preprocess=preprocess,
        shuffle=True,
        augment=augment,
        classes=len(data.classes),
        world=devices,
    )
    start = time.perf_counter()
    for _ in loader.epoch(0):
        pass
    pipeline = time.perf_counter() - start
    if devices > 1:  # the processes shared them
        torch.set_num_threads(threads)
    limit = measure.gemm_limit()
    return EpochCost(
        images=len(data.train),
        seconds=seconds[0],
        pipeline_share=pipeline / seconds[0],
        gemm_gflops=limit / 1e9,
        gemm_share=3 * result["flops"] * len(data.train) / seconds[0] / limit,
        handing_over=measure.handing_over(),
        peak_memory=result["peak_memory"],
    )
