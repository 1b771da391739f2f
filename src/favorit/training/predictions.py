"""The test predictions of a run, and their compact form in a packed run: about one byte for each image."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

# Confidence is quantized to 16 values, so that two images share a byte.
STEPS = 15
# predicted       two images in each byte if all classes are below 16: this compresses best
# confidence      in steps of 1/15, two images in each byte
# correct         eight images in each byte: 1.3 kB with the digest for 10,000 images; labels would take 5 to 8 kB
# images          the number of images
# labels_digest   text
ARRAYS = ("predicted.npy", "confidence.npy", "correct.npy", "images.npy", "labels_digest.npy")


@dataclass(frozen=True)
class Predictions:
    """The predictions for the test images, in their order.

    `predicted` is the class, `confidence` its softmax probability in steps of 1/15, `correct` True if it is the label.
    Runs with equal `labels_digest` were tested on the same labels in the same order.
    """

    predicted: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray
    labels_digest: str


def summarize(logits: np.ndarray, labels: np.ndarray) -> Predictions:
    """The predictions for logits (images, classes). Ties are broken by class order.

    Raises ValueError for arrays of another shape, without images, or with values that are not finite.
    """
    if logits.ndim != 2 or not logits.size or labels.shape != logits.shape[:1]:
        raise ValueError(f"logits of shape {logits.shape} and labels of shape {labels.shape}")
    if logits.dtype.kind != "f" or labels.dtype.kind not in "iu" or not np.isfinite(logits).all():
        raise ValueError(f"logits of type {logits.dtype} that are not finite, or labels of type {labels.dtype}")
    predicted = logits.argmax(-1)
    shifted = (logits - logits.max(-1, keepdims=True)).astype(np.float64)
    confidence = 1 / np.exp(shifted).sum(-1)
    digest = hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()[:16]
    return Predictions(predicted, np.rint(confidence * STEPS) / STEPS, predicted == labels, digest)


def encode(predictions: Predictions) -> dict[str, bytes]:
    """The content of ARRAYS by name."""
    predicted = predictions.predicted
    most = int(predicted.max(initial=0))
    paired = most < 16 and len(predicted) > 1  # `decode` recognizes pairs by the length, so not for one image
    arrays = (
        _pairs(predicted) if paired else predicted.astype(np.min_scalar_type(most)),
        _pairs(np.rint(predictions.confidence * STEPS)),
        np.packbits(predictions.correct),
        np.asarray(len(predicted)),
        np.asarray(predictions.labels_digest),
    )
    return {name: _npy(array) for name, array in zip(ARRAYS, arrays, strict=True)}


def decode(members: Mapping[str, bytes]) -> Predictions:
    """The predictions that `encode` wrote; ValueError if they are damaged."""
    if missing := [name for name in ARRAYS if name not in members]:
        raise ValueError(f"no {', '.join(missing)}")
    arrays = [np.load(io.BytesIO(members[name]), allow_pickle=False) for name in ARRAYS]
    predicted, confidence, correct, images, digest = arrays
    count = int(images)
    if not count or any(each.ndim != 1 or each.dtype.kind != "u" for each in (predicted, confidence, correct)):
        raise ValueError("no images, or arrays that are not lists of bytes")
    if (len(confidence), len(correct)) != ((count + 1) // 2, (count + 7) // 8) or len(predicted) not in (
        count,
        len(confidence),
    ):
        raise ValueError(f"arrays of {len(predicted)}, {len(confidence)} and {len(correct)} bytes for {count} images")
    return Predictions(
        predicted if len(predicted) == count else _singles(predicted, count),
        _singles(confidence, count) / STEPS,
        np.unpackbits(correct, count=count).astype(bool),
        str(digest),
    )


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _pairs(values: np.ndarray) -> np.ndarray:
    """Values below 16, two in each byte."""
    padded = np.append(values.astype(np.uint8), np.zeros(len(values) % 2, np.uint8))
    return padded[::2] << 4 | padded[1::2]


def _singles(pairs: np.ndarray, count: int) -> np.ndarray:
    return np.stack([pairs >> 4, pairs & 15], 1).reshape(-1)[:count]
