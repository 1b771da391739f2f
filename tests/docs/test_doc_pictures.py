"""The pictures of the documents, from their stored tables."""

from __future__ import annotations

import pandas
import pytest

import draw_benchmarks
import draw_demo
from checks_chart import drawn_texts, marks
from favorit.bench import approximation_figure, crossover, crossover_figure
from favorit.charts.palette import FIXED


def test_demo_shows_each_mixer_with_its_interval() -> None:
    data = pandas.read_csv(draw_demo.CSV)
    found = draw_demo.final_accuracies(data).set_index("mixer")
    assert set(found.index) == set(draw_demo.MIXERS)
    assert found.loc["softmax", "accuracy"] == data[data.mixer == "softmax"].test_accuracy.iloc[0]
    assert (found["low"] < found["accuracy"]).all()
    assert (found["accuracy"] < found["high"]).all()
    chart = draw_demo.draw(data)
    curves, bars = marks(chart)[:2]
    for mark in (curves, bars):
        scale = mark["encoding"]["color"]["scale"]
        assert dict(zip(scale["domain"], scale["range"], strict=True)) == {
            name: FIXED[name.partition("(")[0]] for name in draw_demo.MIXERS
        }
    assert bars["encoding"]["x"]["scale"]["domain"] == [0, 1]
    assert {"93.1%", "validation accuracy", *draw_demo.MIXERS} <= set(drawn_texts(chart))


def test_interval_of_a_share_is_that_of_wilson() -> None:
    assert draw_demo.interval(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_benchmark_pictures_are_drawn_from_their_tables() -> None:
    points = draw_benchmarks.crossover_points()
    chart = crossover_figure.draw(crossover_figure.panels(points), draw_benchmarks.CROSSOVER_TITLE)
    assert {point.mixer for point in points if point.mixer != crossover.SDPA} <= set(drawn_texts(chart))
    errors = draw_benchmarks.approximation_points()
    approximation = approximation_figure.draw(approximation_figure.panels(errors), draw_benchmarks.APPROXIMATION_TITLE)
    assert {"trigonometric", "uniform: error 0.79", "246x or more"} <= set(drawn_texts(approximation))
