"""A model on images it does not learn from: its answers, how long they took, and what is reported of them."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from favorit import measure
from favorit.data import Loader
from favorit.evaluate import metrics


class Precision(Protocol):
    """Makes the context that a forward pass runs in, such as autocast."""

    def __call__(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class Evaluation:
    """The logits of some images in order, and the seconds that each batch took."""

    logits: Tensor
    labels: Tensor
    seconds: list[float]


def evaluate(model: nn.Module, loader: Loader, device: torch.device, precision: Precision) -> Evaluation:
    """One pass over a loader in evaluation mode; the data pipeline is not timed."""
    logits, labels, seconds = [], [], []
    training = model.training
    model.eval()
    with torch.inference_mode():
        for batch in loader.epoch(0):
            images = batch.images.to(device)
            start = time.perf_counter()
            with precision():
                out = model(images).float().cpu()
            seconds.append(time.perf_counter() - start)
            logits.append(out)
            labels.append(batch.targets)
    model.train(training)
    return Evaluation(torch.cat(logits), torch.cat(labels), seconds)


def report(model: nn.Module, found: Evaluation, image: Tensor) -> dict[str, Any]:
    """What a result says of a tested model, as JSON data: metrics, times, memory of this process, size; FLOPs are those of one `image`."""
    total, seconds = sum(found.seconds), torch.tensor(found.seconds)
    return {
        "test": metrics(found.logits, found.labels),
        "inference_seconds": total,
        "inference_seconds_per_batch": [total / len(seconds), float(seconds.std(correction=0))],
        "images_per_second": len(found.labels) / total,
        "peak_memory": measure.peak_memory(),
        "parameters": measure.parameters(model),
        "flops": measure.flops(model.eval(), image)[""],
    }
