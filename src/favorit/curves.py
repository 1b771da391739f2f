"""Curves over epochs as figures show them."""

from __future__ import annotations

import math
from collections.abc import Iterable

WEIGHT = 0.6  # TensorBoard's default


def smooth(values: Iterable[float], weight: float = WEIGHT) -> list[float]:
    """s_n = sum_i weight^(n-i) v_i / sum_i weight^(n-i), i = 1..n: the exponential moving average without bias to a
    start at 0.

    As in TensorBoard, values that are not finite stay as they are and do not enter the average. `weight` is in [0, 1);
    0 smooths nothing.
    """
    smoothed = []
    total = count = 0.0
    for value in values:
        if not math.isfinite(value):
            smoothed.append(value)
            continue
        total = weight * total + value
        count = weight * count + 1
        smoothed.append(total / count)
    return smoothed
