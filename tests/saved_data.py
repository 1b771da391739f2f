"""The files of a run, for tests that write runs without training."""

from __future__ import annotations

from typing import Any

RESULT: dict[str, Any] = {
    "status": "complete",
    "epochs": 2,
    "test": {"accuracy": 0.5, "top5": 0.9, "loss": 1.0, "calibration_error": 0.1},
    "validation": None,
    "parameters": 1000,
    "flags": [],
    "train_seconds_per_epoch": 1.0,
    "inference_seconds": 1.0,
    "images_per_second": 48.0,
}


def card(classes: int, channels: int = 3) -> dict[str, Any]:
    """The data section of config.json."""
    return {
        "digest": "0",
        "classes": [str(number) for number in range(classes)],
        "mean": [0.5] * channels,
        "std": [0.5] * channels,
        "image_size": [8, 8],
        "channels": channels,
    }
