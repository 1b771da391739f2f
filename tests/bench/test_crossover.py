"""`favorit bench crossover`: the crossing of constructed curves, the advice, and the command at small sizes."""

from __future__ import annotations

import json
import math
import random
import sys
from itertools import pairwise
from pathlib import Path

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from favorit import FavoritError
from favorit.bench.crossover import (
    GRID,
    SDPA,
    SOFTMAX,
    Point,
    advice,
    crossing,
    crossings,
    default_grid,
    default_patch,
    isotonic,
    measure_points,
    ratios,
)
from favorit.bench.crossover_figure import draw, panels
from favorit.bench.speed import FORWARD, TRAINING
from favorit.cli.main import main


def curve(n_star: float, power: float = 1.0) -> list[float]:
    return [(tokens / n_star) ** power for tokens in GRID]


@pytest.mark.parametrize(("n_star", "power"), [(100.0, 1.0), (64.0, 0.3), (17.0, 2.0), (4000.0, 1.5)])
def test_crossing_of_power_law_is_exact(n_star: float, power: float) -> None:
    assert crossing(GRID, curve(n_star, power)) == (pytest.approx(n_star), False)


def test_crossing_outside_the_grid_is_never_or_always() -> None:
    assert crossing(GRID, [0.5] * len(GRID)) == (None, False)
    assert crossing(GRID, curve(5000.0)) == (None, False)
    assert crossing(GRID, [1.5] * len(GRID)) == (16.0, True)
    assert crossing([64], [2.0]) == (64.0, True)
    assert crossing([64], [0.5]) == (None, False)


def test_noise_moves_the_crossing_only_a_little() -> None:
    noise = random.Random(0)
    for _ in range(50):
        noisy = [ratio * math.exp(noise.gauss(0, 0.1)) for ratio in curve(100.0)]
        found, always = crossing(GRID, noisy)
        assert found is not None
        assert 75 < found < 135
        assert not always


def test_one_outlier_does_not_move_the_crossing() -> None:
    disturbed = curve(100.0)
    disturbed[-2] = 0.9  # instead of about 30
    found, _ = crossing(GRID, disturbed)
    assert found == pytest.approx(100.0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_isotonic_fit_is_the_nearest_non_decreasing_curve(values: list[float]) -> None:
    found = isotonic(values)
    assert len(found) == len(values)
    assert all(a <= b + 1e-12 for a, b in pairwise(found))
    assert math.fsum(found) == pytest.approx(math.fsum(values), abs=1e-9)
    assert isotonic(found) == pytest.approx(found)
    assert isotonic(sorted(values)) == sorted(values)
    # The residual of a projection onto a cone is orthogonal to the projection.
    assert math.fsum((v - f) * f for v, f in zip(values, found, strict=True)) == pytest.approx(0, abs=1e-8)


def make_points(times: dict[str, dict[int, float]], memory: int = 1) -> list[Point]:
    """Points in which forward takes a third of the time of training."""
    return [
        Point(mixer, what, tokens, share * time, share * time, share * time, memory)
        for mixer, by_tokens in times.items()
        for tokens, time in by_tokens.items()
        for what, share in ((FORWARD, 1 / 3), (TRAINING, 1.0))
    ]


SQUARE = {tokens: (tokens / 100) ** 2 for tokens in (50, 100, 200, 400)}
LINE = {tokens: tokens / 50 for tokens in SQUARE}
POINTS = make_points(
    {
        SDPA: SQUARE,
        SOFTMAX: {n: t / 1.5 for n, t in SQUARE.items()},
        "relu": LINE,
        "favor": {n: 4 * t for n, t in LINE.items()},
    }
)


def test_crossings_compare_linear_mixers_with_sdpa() -> None:
    found = {(each.mixer, each.curve): each for each in crossings(POINTS)}
    assert {mixer for mixer, _ in found} == {"relu", "favor"}
    assert found["relu", "training"].tokens == pytest.approx(200)
    assert found["relu", "forward"].tokens == pytest.approx(200)
    assert found["favor", "training"].tokens is None
    assert found["relu", "training memory"].always, "equal memory counts as no more than SDPA's"
    assert ratios(POINTS, "training")["relu"][400] == pytest.approx(2.0)


def test_advice_compares_with_the_faster_softmax() -> None:
    """Our softmax is 1.5 times faster than SDPA here, so relu pays from 300 tokens on instead of 200."""
    assert advice(POINTS, 160, 8, 400) == (
        "at 160x160 with patch 8 (400 tokens) relu attention trains 1.3x faster than the faster of SDPA and softmax; "
        "keep softmax below 300 tokens; a whole model gains less, measure it with: favorit bench speed --preset"
    )
    assert advice(POINTS, 112, 8, 200) == (
        "at 112x112 with patch 8 (200 tokens) keep softmax: relu, the fastest other mixer, "
        "trains at 0.67x the speed of softmax; it pays from about 300 tokens on"
    )


def test_advice_for_mixer_that_never_or_always_pays() -> None:
    slow = make_points({SDPA: SQUARE, SOFTMAX: SQUARE, "favor": dict.fromkeys(SQUARE, 100.0)})
    assert advice(slow, 160, 8, 400).endswith("it is slower at all measured counts")
    fast = make_points({SDPA: SQUARE, SOFTMAX: SQUARE, "relu": dict.fromkeys(SQUARE, 0.01)})
    assert "; it is no slower at any measured count from 50 tokens on; a whole model" in advice(fast, 160, 8, 400)


def test_default_grid_ends_at_maximum_and_contains_advised_count() -> None:
    assert default_grid(100, 65) == [16, 24, 32, 48, 65, 96]
    assert default_grid(1024, 785)[-2:] == [785, 1024]
    assert 768 not in default_grid(1024, 785)


def test_figure_shows_ratios_and_crossings() -> None:
    content = panels(POINTS)
    assert [panel.curve for panel in content] == ["forward", "training", "forward memory", "training memory"]
    lines = {line.mixer: line for line in content[1].lines}
    assert set(lines) == {SOFTMAX, "relu", "favor"}
    assert lines["relu"].tokens == (50, 100, 200, 400)
    assert lines["relu"].ratio == pytest.approx((0.25, 0.5, 1.0, 2.0))
    assert lines["relu"].crossing == pytest.approx(200)
    assert lines["favor"].crossing is None
    training = draw(content, "title").axes[1]
    assert len(training.lines) == 1 + 3 + 1, "the level 1, three mixers, one ring"


def test_points_have_time_and_memory_of_all_mixers() -> None:
    counts = [5, 9]
    found = list(measure_points(["relu", "softmax", "linformer(k=2)"], counts, batch=2, heads=2, head_dim=4, repeats=1))
    assert [{point.tokens for point in points} for points in found] == [{5}, {9}]
    assert {(point.mixer, point.what) for point in found[0]} == {
        (mixer, what) for mixer in (SDPA, SOFTMAX, "relu", "linformer(k=2)") for what in (FORWARD, TRAINING)
    }
    assert all(point.median > 0 and point.memory > 0 for points in found for point in points)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(mixers=["softmax"]), "a mixer other than softmax"),
        (dict(mixers=["rellu"]), "did you mean 'relu'"),
        (dict(device="nowhere"), "device=nowhere is not available"),
        (dict(tokens=[1 << 40]), r"at most \d+ tokens fit"),
    ],
)
def test_invalid_mixers_devices_and_sizes_are_rejected(options: dict[str, object], message: str) -> None:
    given = dict(mixers=["relu"], tokens=[4], batch=1, heads=1, head_dim=4, repeats=1) | options
    with pytest.raises(FavoritError, match=message):
        next(measure_points(**given))  # type: ignore[arg-type]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["favorit", "bench", "crossover", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_command_writes_table_advice_csv_figure_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "crossover.csv", tmp_path / "crossover.png"
    sizes = ("--batch", "1", "--heads", "2", "--head-dim", "4", "--tokens", "5", "--repeats", "1")
    image = ("--image", "8", "--patch", "2")
    assert not run(monkeypatch, *sizes, *image, "--mixer", "relu", "--out", str(out), "--figure", str(figure), "--json")
    printed = capsys.readouterr()
    report = json.loads(printed.out.splitlines()[-1])
    assert report["advice"] in printed.err
    assert "foreign_load" in report
    assert report["advice"].startswith("at 8x8 with patch 2 (17 tokens) ")
    assert {crossing["curve"] for crossing in report["crossings"]} == {
        "forward",
        "training",
        "forward memory",
        "training memory",
    }
    assert set(pandas.read_csv(out)["tokens"]) == {5, 17}
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_image_with_more_tokens_than_the_grid_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--most-tokens", "100", "--patch", "8") == 2
    assert "785 tokens, more than --most-tokens 100" in capsys.readouterr().err
    assert run(monkeypatch, "--image", "33", "--patch", "8") == 2
    assert "--patch 8 does not divide --image 33: give a divisor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("image", "tokens", "patch"),
    [(224, 1024, 8), (224, 256, 16), (224, 2, 224), (32, 1024, 8), (7, 1024, 7), (1, 2, 1)],
)
def test_default_patch_is_the_smallest_that_fits(image: int, tokens: int, patch: int) -> None:
    assert default_patch(image, tokens) == patch


def test_largest_token_count_alone_chooses_the_patch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--batch", "1", "--heads", "1", "--head-dim", "4", "--repeats", "1")
    assert not run(monkeypatch, "--most-tokens", "32", *sizes, "--mixer", "relu", "--json")
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["advice"].startswith("at 224x224 with patch 56 (17 tokens) ")
    assert {point["tokens"] for point in report["points"]} == {17, 24, 32}


def test_advice_for_mixer_that_wins_only_at_the_advised_count() -> None:
    """The isotonic fit then has no crossing."""
    times = {16: 10.0, 32: 10.0, 64: 10.0, 128: 10.0}
    points = make_points({SDPA: times, SOFTMAX: times, "relu": {16: 30.0, 32: 9.0, 64: 30.0, 128: 30.0}})
    assert "trains 1.1x faster than the faster of SDPA and softmax; keep softmax at fewer tokens" in advice(
        points, 40, 8, 32
    )
