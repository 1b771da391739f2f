"""Metrics as pure functions of logits and labels.

Shapes: N images, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def metrics(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Everything that a result reports of its predictions, as JSON data: overall, per class, confusion matrix,
    calibration.
    """
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
    """The share of images whose label is among the k largest logits; of equal ones, as bf16 makes them, the first, as
    argmax has it.
    """
    own, classes = logits.gather(-1, labels[:, None]), torch.arange(logits.shape[-1])
    before = (logits > own) | ((logits == own) & (classes < labels[:, None]))
    return (before.sum(-1) < k).double().mean().item()


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(C, C) counts: row is the label, column the prediction."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def per_class(confusion: Tensor) -> dict[str, list[float]]:
    """precision = right / predicted, recall = right / there are, f1 = their harmonic mean; 0 where a denominator is."""
    counts = confusion.double()
    right, there, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    precision, recall = right / predicted.clamp(min=1), right / there.clamp(min=1)
    f1 = 2 * right / (there + predicted).clamp(min=1)
    return {"precision": precision.tolist(), "recall": recall.tolist(), "f1": f1.tolist()}


def calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """sum over bins of confidence of (share of images) |accuracy - mean confidence|; 0 is a model that knows how sure
    to be.
    """
    confidence, predicted = logits.double().softmax(-1).max(-1)
    right = (predicted == labels).double()
    place = (confidence * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, right - confidence)
    return gap.abs().sum().item() / len(labels)
