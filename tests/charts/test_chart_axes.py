"""Ticks of logarithmic axes."""

from __future__ import annotations

import pytest

from favorit.charts.axes import legend_columns, log_ticks, powers_of_two


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.09, 12.0, [0.1, 0.2, 0.5, 1, 2, 5, 10]),
        (0.9, 2.5, [1, 1.2, 1.5, 2]),
        (2e-8, 0.5, [1e-7, 1e-5, 1e-3, 1e-1]),
        (1.0, 1.0, [1]),
    ],
)
def test_logarithmic_axis_has_round_labels(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == ticks


def test_counts_are_labeled_at_powers_of_two() -> None:
    assert powers_of_two(16, 785) == [16, 32, 64, 128, 256, 512]
    assert powers_of_two(5, 7) == [5, 7]


def test_legend_has_fewer_columns_if_names_are_long() -> None:
    assert legend_columns(["relu", "favor"], 780) > legend_columns(["favor(features=hyperbolic, m=128)"], 780) >= 1
    assert legend_columns(["x" * 500], 780) == 1
