"""The cost of whole models on this machine: a training step and inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit import measure
from favorit.bench.memory import check_fits, peak_bytes
from favorit.bench.speed import Cost, Key, cost, pairs_with_first, run_forward
from favorit.bench.timing import interleave_with_gemm
from favorit.config import ModelConfig
from favorit.model import LAYOUTS, create_model
from favorit.model.outline import check_memory
from favorit.training.optim import adamw

STEP, INFERENCE = "training step", "inference"


def model_costs(models: dict[str, ModelConfig], batch: int, *, repeats: int = 7) -> list[Cost]:
    """The costs of a training step (loss, backward, AdamW) and of inference for each model."""
    calls: dict[Key, Callable[[], Any]] = {}
    flops: dict[Key, int] = {}
    paths: dict[Key, str] = {}
    for name, config in models.items():
        check_memory(config)
        model = create_model(config, seed=0)
        (optimizer,) = adamw(model, lr=1e-6, weight_decay=0.0)

        step = partial(training_step, model, optimizer)
        _check_batch_fits(step, config, batch)
        images, labels = _random_batch(config, batch)
        calls[name, STEP, model.tokens] = partial(step, images, labels)
        calls[name, INFERENCE, model.tokens] = partial(run_forward, model, images)
        paths[name, STEP, model.tokens] = _by_layers(model.attention_implementations(batch))
        with torch.no_grad():
            paths[name, INFERENCE, model.tokens] = _by_layers(model.attention_implementations(batch))
        batch_flops = batch * measure.flops(model, images[:1])[""]
        flops[name, STEP, model.tokens] = 3 * batch_flops
        flops[name, INFERENCE, model.tokens] = batch_flops
    times, limit = interleave_with_gemm(calls, repeats, pairs_with_first(calls))
    shares = {key: 1e3 * flops[key] / times[key].median / limit for key in calls}
    return [replace(cost(key, times[key], call, batch, shares[key]), path=paths[key]) for key, call in calls.items()]


def _by_layers(paths: list[str]) -> str:
    """['a', 'a', 'b'] -> 'layers 1-2: a; layer 3: b'."""
    ranges = []
    for path, group in groupby(enumerate(paths, 1), key=lambda numbered: numbered[1]):
        layers = [layer for layer, _ in group]
        label = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"
        ranges.append(f"{label}: {path}")
    return "; ".join(ranges)


def all_layouts(models: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Each model in `all_standard`, then in the other named layouts with relu and with favor."""
    found = {}
    for name, config in models.items():
        found[f"{name} all_standard"] = config.replace(layout="all_standard")
        for layout in (layout for layout in LAYOUTS if layout != "all_standard"):
            for kernel in ("relu(m=128)", "favor(m=128)"):
                found[f"{name} {layout} {kernel}"] = config.replace(layout=layout, performer=kernel)
    return found


def training_step(
    model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> None:
    """Cross-entropy, backward, and one step of the optimizer."""
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


def step_call(config: ModelConfig, batch: int) -> Callable[[], None]:
    """A training step (loss, backward, AdamW) of a model as a call, on one batch of random images."""
    model = create_model(config, seed=0)
    (optimizer,) = adamw(model, lr=1e-6, weight_decay=0.0)
    return partial(training_step, model, optimizer, *_random_batch(config, batch))


def _check_batch_fits(step: Callable[[Tensor, Tensor], None], config: ModelConfig, batch: int) -> None:
    """Raises an error if the batch does not fit, before it is allocated.

    Memory is extrapolated from one and two images. The second image adds only memory that grows with the batch, so not
    the gradients of parameters.
    """

    def peak(images: int) -> int:
        return peak_bytes(lambda: step(*_random_batch(config, images)))

    step(*_random_batch(config, 1))  # the first step allocates the optimizer state
    one, two = peak(1), peak(2)
    check_fits("images", batch, lambda images: one + (images - 1) * (two - one))


def _random_batch(config: ModelConfig, batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, config.channels, *config.image_size), torch.randint(config.classes, (batch,))
