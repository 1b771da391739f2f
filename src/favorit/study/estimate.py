"""How long runs will take, from a few training steps of each distinct shape.

A step of b images takes a + c b seconds; forward alone is taken to be a third of c.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from favorit.config import RunConfig
from favorit.study.tasks import Task

SMALL = (4, 12)  # images of the first steps: enough to see the slope, few enough for large models
WHOLE = 1.0  # a step of the whole batch is timed only if it takes no more seconds than this


def shape(config: RunConfig) -> Any:
    """What the time of a step depends on."""
    return config.model, config.train.batch_size, config.train.optimizer, config.train.precision


def estimate(
    tasks: Iterable[Task],
    images: Mapping[str, tuple[int, int]],
    *,
    threads: int,
    tell: Callable[[Task], None] | None = None,
) -> dict[str, float]:
    """Seconds of each task by name, on `threads` threads; early stopping is not foreseen. `tell` hears of each shape
    before it is timed.
    """
    import torch

    found: dict[str, float] = {}
    timed: dict[Any, tuple[float, float]] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for task in tasks:
            key = shape(task.config)
            if key not in timed:
                if tell is not None:
                    tell(task)
                timed[key] = _cost(task.config)
                gc.collect()
            found[task.name] = run_seconds(task.config, *images[task.config.data.name], *timed[key])
    finally:
        torch.set_num_threads(before)
    return found


def run_seconds(config: RunConfig, train: int, test: int, fixed: float, slope: float) -> float:
    """Seconds of a run whose data set has `train` and `test` images, where a step takes `fixed` and `slope` more for
    each image.
    """
    data, options = config.data, config.train
    test = min(data.test_subset or test, test)
    trained = trained_images(config, train)
    aside = min(data.subset or train, train) - trained
    watched = test if options.watch else 0
    steps = -(-trained // options.batch_size)
    epoch = steps * fixed + trained * slope + (aside + watched) * slope / 3
    return options.epochs * epoch + test * slope / 3


def trained_images(config: RunConfig, train: int) -> int:
    """Training images of an epoch, where the data set has `train`: those of the subset that are not held out for
    validation.
    """
    data = config.data
    used = min(data.subset or train, train)
    share = 1 / data.folds if data.folds else data.validation
    return used - (round(used * share) if share < 1 else int(share))


def _cost(config: RunConfig) -> tuple[float, float]:
    """(a, c): the seconds of a step, and of each image in it."""
    import torch
    from torch.nn import functional as F

    from favorit.model import create_model
    from favorit.training.optim import build_optimizers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = create_model(config.model, seed=0)
    optimizers = build_optimizers(model, config.train)
    precision = torch.autocast("cpu", torch.bfloat16, enabled=config.train.precision == "bf16")

    def seconds(size: int, repeats: int) -> float:
        images = torch.randn(size, config.model.channels, *config.model.image_size)
        targets = torch.arange(size) % config.model.classes
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            with precision:
                logits = model(images)
            F.cross_entropy(logits.float(), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            best = min(best, time.perf_counter() - start)
        return best

    batch = config.train.batch_size
    small, large = (min(size, batch) for size in SMALL)
    first, second = seconds(small, 2), seconds(large, 2)
    slope = max(second - first, 0.0) / (large - small) if large > small else second / batch
    fixed = max(second - slope * large, 0.0)
    if fixed + slope * batch <= WHOLE and batch > large:
        whole = seconds(batch, 3)
        slope = max(whole - second, 0.0) / (batch - large)
        fixed = max(whole - slope * batch, 0.0)
    return fixed, slope
