"""Metrics as pure functions of logits and labels.

Shapes: N images, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.errors import FavoritError


def metrics(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """The metrics of finite logits as JSON data: overall, per class, confusion matrix, calibration."""
    if wrong := int((~logits.isfinite().all(-1)).sum()):
        raise FavoritError(f"the logits of {wrong} of {len(logits)} images are not finite: they have no metrics")
    confusion = confusion_matrix(logits.argmax(-1), labels, logits.shape[-1])
    return {
        "accuracy": accuracy(logits, labels),
        "top5": accuracy(logits, labels, k=5),
        "loss": F.cross_entropy(logits.double(), labels).item(),
        "calibration_error": calibration_error(logits, labels),
        **per_class(confusion),
        "confusion": confusion.tolist(),
    }


def accuracy(logits: Tensor, labels: Tensor, k: int = 1) -> float:
    """The fraction of images whose label is among the k largest logits.

    Ties, which bf16 makes likely, are broken by class order, as in argmax.
    """
    label_logits, classes = logits.gather(-1, labels[:, None]), torch.arange(logits.shape[-1])
    better = (logits > label_logits) | ((logits == label_logits) & (classes < labels[:, None]))
    return (better.sum(-1) < k).double().mean().item()


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(C, C) counts: row is the label, column the prediction."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def per_class(confusion: Tensor) -> dict[str, list[float]]:
    """precision = correct / predicted, recall = correct / actual, f1 = their harmonic mean; 0 where undefined."""
    counts = confusion.double()
    correct = counts.diagonal()
    actual = counts.sum(1)
    predicted = counts.sum(0)
    precision = correct / predicted.clamp(min=1)
    recall = correct / actual.clamp(min=1)
    f1 = 2 * correct / (actual + predicted).clamp(min=1)
    return {"precision": precision.tolist(), "recall": recall.tolist(), "f1": f1.tolist()}


def calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error: sum over confidence bins of |accuracy - mean confidence| * (fraction of images)."""
    confidence, predicted = logits.double().softmax(-1).max(-1)
    correct = (predicted == labels).double()
    index = (confidence * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, correct - confidence)
    return gap.abs().sum().item() / len(labels)
