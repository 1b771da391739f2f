"""Smoothing of curves, against TensorBoard's own recurrence."""

from __future__ import annotations

import math

import pytest

from favorit.smoothing import smooth

VALUES = [2.3, 1.9, 2.0, 1.2, 1.25, 0.7]


def tensorboard(values: list[float], weight: float) -> list[float]:
    """The recurrence of its line chart: last = last * w + (1 - w) * value, divided by 1 - w^n."""
    last, found = 0.0, []
    for number, value in enumerate(values, 1):
        last = last * weight + (1 - weight) * value
        found.append(last / (1 - weight**number))
    return found


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.6, 0.99])
def test_smooth_equals_the_recurrence_of_tensorboard(weight: float):
    assert smooth(VALUES, weight) == pytest.approx(tensorboard(VALUES, weight), rel=1e-12)


def test_smooth_has_the_default_weight_of_tensorboard():
    assert smooth(VALUES) == pytest.approx(tensorboard(VALUES, 0.6))
    assert smooth(VALUES)[1] == pytest.approx((1.9 + 0.6 * 2.3) / 1.6)


def test_smooth_of_a_constant_is_the_constant():
    assert smooth([0.5] * 4) == pytest.approx([0.5] * 4)


def test_smooth_keeps_non_finite_values_out_of_the_average():
    found = smooth([1.0, math.nan, 2.0, math.inf])
    assert math.isnan(found[1])
    assert found[3] == math.inf
    assert found[::2] == pytest.approx(smooth([1.0, 2.0]))


def test_smooth_of_no_values_is_empty():
    assert smooth([]) == []
