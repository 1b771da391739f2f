"""Evaluation of a model on held-out images: logits, inference times and metrics."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit import measure
from favorit.data import Loader
from favorit.metrics import metrics


class AutocastFactory(Protocol):
    """Creates the context of a forward pass, such as autocast."""

    def __call__(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class Evaluation:
    """The logits and labels of images in order, and the seconds and number of images of each batch."""

    logits: Tensor
    labels: Tensor
    seconds: list[float]
    images: list[int]

    @property
    def loss(self) -> float:
        """The mean cross-entropy."""
        return F.cross_entropy(self.logits, self.labels).item()

    @property
    def accuracy(self) -> float:
        return (self.logits.argmax(-1) == self.labels).double().mean().item()


def evaluate(model: nn.Module, loader: Loader, device: torch.device, precision: AutocastFactory) -> Evaluation:
    """One pass over a loader in evaluation mode. The times exclude the data pipeline."""
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
    return Evaluation(torch.cat(logits), torch.cat(labels), seconds, list(map(len, labels)))


def report(model: nn.Module, found: Evaluation, image: Tensor) -> dict[str, Any]:
    """The test fields of a result as JSON data: metrics, times, peak memory, size. FLOPs are those of one `image`."""
    total, batch = sum(found.seconds), max(found.images)
    # Only full batches give the time per batch: the last may be smaller. A single batch has no deviation.
    whole = [seconds for seconds, images in zip(found.seconds, found.images, strict=True) if images == batch]
    return {
        "test": metrics(found.logits, found.labels),
        "inference_seconds": total,
        "inference_batch": batch,
        "inference_seconds_per_batch": [fmean(whole), pstdev(whole) if len(whole) > 1 else None],
        "images_per_second": len(found.labels) / total,
        "peak_memory": measure.peak_memory(),
        "parameters": measure.parameters(model),
        "flops": measure.flops(model.eval(), image)[""],
    }
