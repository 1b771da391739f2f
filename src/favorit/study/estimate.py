"""Estimates how long runs take from a few training steps of each distinct model and batch size.

A step with b images is modeled as a + c b seconds (`StepCost`), and a forward pass alone as c / 3 per image.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

from favorit.config import RunConfig
from favorit.study.tasks import Task
from favorit.study.timings import StepCost, Timings

FIRST_SIZES = (4, 12)  # batch sizes of the first timed steps: large enough for the slope, small enough for large models
LONGEST_STEP = 1.0  # seconds: a step with a full batch is timed only if its estimate is at most this


def estimate(
    tasks: Sequence[Task],
    images: Mapping[str, tuple[int, int]],
    timings: Timings,
    tell: Callable[[Task, int, int], None] | None = None,
) -> dict[str, float]:
    """Seconds of each task by name, without early stopping. Times the shapes that `timings` does not have.

    `images` has the number of (training, test) images of each data set. `tell` is called before a shape is timed, with
    a task that has it, the number of shapes timed before, and the number of shapes to time.
    """
    import torch

    missing = timings.missing(task.config for task in tasks)
    before = torch.get_num_threads()
    torch.set_num_threads(timings.threads)
    try:
        for done, config in enumerate(missing):
            if tell is not None:
                tell(next(task for task in tasks if task.config is config), done, len(missing))
            timings.add(config, _cost(config))
            gc.collect()
    finally:
        torch.set_num_threads(before)
    return {task.name: run_seconds(task.config, *images[task.config.data.name], timings[task.config]) for task in tasks}


def run_seconds(config: RunConfig, train: int, test: int, cost: StepCost) -> float:
    """Seconds of a run on `train` and `test` images, from the cost of a step."""
    data, options = config.data, config.train
    test = min(data.test_subset or test, test)
    trained = trained_images(config, train)
    validation = min(data.subset or train, train) - trained
    watched = test if options.watch else 0
    steps = -(-trained // options.batch_size)
    epoch = steps * cost.fixed + trained * cost.slope + (validation + watched) * cost.slope / 3
    return options.epochs * epoch + test * cost.slope / 3


def trained_images(config: RunConfig, train: int) -> int:
    """Training images per epoch of a data set with `train` images: the subset without the validation part."""
    data = config.data
    used = min(data.subset or train, train)
    share = 1 / data.folds if data.folds else data.validation
    return used - (round(used * share) if share < 1 else int(share))


def _cost(config: RunConfig) -> StepCost:
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
    small, large = (min(size, batch) for size in FIRST_SIZES)
    first, second = seconds(small, 2), seconds(large, 2)
    slope = max(second - first, 0.0) / (large - small) if large > small else second / batch
    fixed = max(second - slope * large, 0.0)
    if fixed + slope * batch <= LONGEST_STEP and batch > large:
        whole = seconds(batch, 3)
        slope = max(whole - second, 0.0) / (batch - large)
        fixed = max(whole - slope * batch, 0.0)
    return StepCost(fixed, slope)
