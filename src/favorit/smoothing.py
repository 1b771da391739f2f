"""Smoothing of curves over epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable

WEIGHT = 0.6  # the default of TensorBoard


def smooth(values: Iterable[float], weight: float = WEIGHT) -> list[float]:
    """s_n = sum_i weight^(n-i) v_i / sum_i weight^(n-i), i = 1..n: the bias-corrected exponential moving average.

    As in TensorBoard, non-finite values are kept and do not enter the average. `weight` is in [0, 1); a weight
    of 0 does not smooth.
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
