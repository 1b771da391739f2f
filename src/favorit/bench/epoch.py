"""The cost of one training epoch as users run it: the whole loop, with the input pipeline."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from favorit import measure
from favorit.config import RunConfig
from favorit.data import Loader, build_augment, build_preprocess, load_dataset, read_spec
from favorit.errors import FavoritError, check_positive
from favorit.training import Epoch, Event, train
from favorit.training.identity import resolve


@dataclass(frozen=True)
class EpochCost:
    """The cost of one epoch.

    `seconds` is the median of all epochs, `low` and `high` are the fastest and the slowest. `pipeline_share` is the
    time to prepare all batches without training, divided by `seconds`. `gemm_gflops` is the
    matrix-product limit of this machine (2048 x 2048, fp32, all threads). `gemm_share` is the FLOP/s of the epoch over
    that limit; backward counts as twice the forward. `cache_penalty` is `measure.cache_penalty`. `peak_memory` is the
    peak memory of the first process in bytes.
    """

    images: int
    seconds: float
    low: float
    high: float
    repeats: int
    pipeline_share: float
    gemm_gflops: float
    gemm_share: float
    cache_penalty: float
    peak_memory: int


def epoch_cost(config: RunConfig, data_dir: Path | None = None, devices: int = 1, repeats: int = 3) -> EpochCost | None:
    """Trains `repeats` epochs on all training images in a temporary folder. With several processes, all but the first
    return None.
    """
    check_positive(repeats=repeats)
    if config.data.subset is not None:
        raise FavoritError(
            f"data.subset={config.data.subset} is not valid here: an epoch is timed on all training images"
        )
    options = config.train.replace(epochs=repeats, select="last", patience=None)
    config = config.replace(data=config.data.replace(validation=0, folds=None, fold=None), train=options)
    data = load_dataset(read_spec(config.data), data_dir)
    seconds: list[float] = []

    def listen(event: Event, config: RunConfig) -> None:
        if isinstance(event, Epoch):
            seconds.append(event.train_seconds)

    with tempfile.TemporaryDirectory() as folder:
        threads = torch.get_num_threads()
        run = train(
            config,
            out=folder,
            data_dir=data_dir,
            devices=devices,
            checkpoint_seconds=float("inf"),
            listen=listen,
            progress=False,
        )
        if not seconds:  # only the first process receives events
            return None
        result = run.result
    config = resolve(config, data)
    loader = Loader(
        data.train,
        batch_size=options.batch_size,
        seed=config.seed,
        preprocess=build_preprocess(config.data.preprocess, data.mean, data.std),
        shuffle=True,
        augment=build_augment(config.data.augment),
        classes=len(data.classes),
        world=devices,
    )
    start = time.perf_counter()
    for _ in loader.epoch(0):
        pass
    pipeline_seconds = time.perf_counter() - start
    if devices > 1:  # training gave each process a share of the threads
        torch.set_num_threads(threads)
    limit = measure.gemm_limit()
    epoch_seconds = statistics.median(seconds)
    return EpochCost(
        images=len(data.train),
        seconds=epoch_seconds,
        low=min(seconds),
        high=max(seconds),
        repeats=repeats,
        pipeline_share=pipeline_seconds / epoch_seconds,
        gemm_gflops=limit / 1e9,
        gemm_share=3 * result["flops"] * len(data.train) / epoch_seconds / limit,
        cache_penalty=measure.cache_penalty(),
        peak_memory=result["peak_memory"],
    )
