"""`favorit bench crossover`: the crossing of constructed curves, the advice, and the command at small sizes."""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks_chart import drawn_texts, marks
from favorit import FavoritError
from favorit.bench import crossover as crossover_module
from favorit.bench.crossover import (
    GRID,
    SDPA,
    SOFTMAX,
    Crossing,
    Point,
    crossing,
    crossings,
    default_grid,
    default_patch,
    find_crossing,
    isotonic,
    measure_points,
    ratios,
    rows,
)
from favorit.bench.crossover_figure import TITLES, crossing_table, draw, panels, ratio_table
from favorit.bench.crossover_text import advice, describe_crossing, describe_disturbances
from favorit.bench.speed import FORWARD, TRAINING
from favorit.bench.spread import Ratio, most_rounds
from favorit.bench.timing import describe
from favorit.charts.palette import FIXED
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
        Point(mixer, what, tokens, share * time, share * time, share * time, memory, (share * time,) * 7)
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
    assert ratios(POINTS, "training")["relu"][400].value == pytest.approx(2.0)


def test_advice_compares_with_the_faster_softmax() -> None:
    """Our softmax is 1.5 times faster than SDPA here, so relu pays from 300 tokens on instead of 200."""
    assert advice(POINTS, 160, 8, 400) == (
        "at 160x160 with patch 8 (400 tokens) relu attention trains 1.33x faster than the faster of SDPA and softmax; "
        "keep softmax below 300 tokens; a whole model gains less, measure it with: favorit bench speed --preset"
    )
    assert advice(POINTS, 112, 8, 200) == (
        "at 112x112 with patch 8 (200 tokens) keep softmax: relu, the fastest other mixer, "
        "trains at 0.67x the speed of softmax; it pays from 300 tokens on"
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
    assert lines["relu"].crossing is not None
    assert lines["relu"].crossing.tokens == pytest.approx(200)
    assert lines[SOFTMAX].crossing is None
    table = ratio_table(content[1]).set_index(["mixer", "tokens"])
    assert table.loc[("relu", 400), "ratio"] == pytest.approx(2.0)
    crossings_drawn = crossing_table(content[1]).set_index("mixer")
    assert list(crossings_drawn.index) == ["relu"], "favor never wins, and softmax has no crossover"
    assert crossings_drawn.loc["relu", "tokens"] == pytest.approx(200)
    assert crossings_drawn.loc["relu", "low"] <= 200 <= crossings_drawn.loc["relu", "high"]


def test_panels_have_intervals_lines_and_rings_on_the_axes_of_their_row() -> None:
    chart = draw(panels(POINTS), "title\nsize")
    drawn = marks(chart)
    assert [mark["type"] for mark in drawn if mark["type"] in ("area", "line")] == ["area", "line"] * 4
    rings = [mark for mark in drawn if mark.get("fill") == "white"]
    assert [row["mixer"] for mark in rings for row in mark["rows"]] == ["relu"] * len(rings)
    domains = [mark["encoding"]["y"]["scale"]["domain"] for mark in drawn if mark["type"] == "line"]
    assert domains[0] == domains[1]
    assert domains[2] == domains[3]
    colors = drawn[1]["encoding"]["color"]["scale"]
    assert dict(zip(colors["domain"], colors["range"], strict=True)) == {
        "softmax": FIXED["softmax"],
        "relu": FIXED["relu"],
        "favor": FIXED["favor"],
    }
    texts = drawn_texts(chart)
    assert {"title", "size", "softmax", "relu", "favor", *TITLES.values()} <= set(texts)
    assert texts.count("relu") == 1, "one legend for all panels"


def test_no_text_of_the_figure_is_cut() -> None:
    names = [
        "favor(features=hyperbolic, m=128, redraw=100)",
        "learned(m=64, hidden=128)",
        *(f"relu(m={m})" for m in range(5)),
    ]
    content = panels(make_points({SDPA: SQUARE, SOFTMAX: SQUARE, **dict.fromkeys(names, LINE)}))
    assert {"x" * 60, *names} <= set(drawn_texts(draw(content, "title\n" + "x" * 60)))


def test_points_have_time_and_memory_of_all_mixers() -> None:
    counts = [5, 9]
    found = measure_points(["relu", "softmax", "linformer(k=2)"], counts, batch=2, heads=2, head_dim=4, repeats=1)
    assert {(point.mixer, point.what, point.tokens) for point in found} == {
        (mixer, what, tokens)
        for mixer in (SDPA, SOFTMAX, "relu", "linformer(k=2)")
        for what in (FORWARD, TRAINING)
        for tokens in counts
    }
    assert all(point.median > 0 and point.memory > 0 for point in found)
    assert all(len(point.rounds) == most_rounds(1) for point in found)


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
        measure_points(**given)  # type: ignore[arg-type]


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
    table = pandas.read_csv(out)
    assert set(table["tokens"]) == {5, 17}
    assert set(table["rounds"]) == {most_rounds(1)}
    linear = table[table["mixer"] == "relu"]
    assert (linear["ratio_low"] <= linear["ratio"]).all()
    assert (linear["ratio"] <= linear["ratio_high"]).all()
    assert linear["ratio_decided"].notna().all()
    assert all(len(point["rounds"]) == most_rounds(1) for point in report["points"])
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
    assert "trains 1.11x faster than the faster of SDPA and softmax; keep softmax at fewer tokens" in advice(
        points, 40, 8, 32
    )


def spread(value: float, width: float) -> Ratio:
    return Ratio(value, value / width, value * width, 7)


def test_crossing_has_the_range_of_its_intervals() -> None:
    """The ratio N / 100 with intervals of a factor 1.2 crosses 1 between 100 / 1.2 and 120 tokens."""
    found = find_crossing("relu", "training", {tokens: spread(tokens / 100, 1.2) for tokens in GRID})
    assert found.tokens == pytest.approx(100)
    assert found.low == pytest.approx(100 / 1.2)
    assert found.high == pytest.approx(120)
    assert describe_crossing(found, GRID) == "100 (83 to 120)"


@pytest.mark.parametrize(
    ("tokens", "always", "low", "high", "text"),
    [
        (148.2, False, 120.4, 180.3, "148 (120 to 180)"),
        (148.2, False, 148.2, 148.2, "148"),
        (148.2, False, 40.0, 180.0, "undecided (40 to 180)"),
        (148.2, False, 16.0, None, "undecided (below 16 to above 1024)"),
        (48.2, False, 16.0, 60.0, "48 (below 16 to 60)"),
        (648.2, False, 420.0, None, "648 (420 to above 1024)"),
        (None, False, None, None, "never up to 1024"),
        (None, False, 800.0, None, "undecided (800 to above 1024)"),
        (16.0, True, 16.0, 16.0, "always from 16"),
        (16.0, True, 16.0, 24.0, "undecided (below 16 to 24)"),
    ],
)
def test_text_of_crossing_has_its_range(
    tokens: float | None, always: bool, low: float | None, high: float | None, text: str
) -> None:
    assert describe_crossing(Crossing("relu", "training", tokens, always, low, high), [16, 64, 1024]) == text


def test_advice_with_undecided_crossing_gives_its_range() -> None:
    """Relu is between 0.3 and 3 times as fast as its ratio N / 100 up to 400 tokens, and surely faster at 6,400."""
    grid = {25: 0.25, 100: 1.0, 400: 4.0, 6400: 64.0}
    rounds = {
        tokens: [1 / (value * factor) for factor in ([0.1, 1, 1, 1, 1, 1, 10] if tokens < 6400 else [1] * 7)]
        for tokens, value in grid.items()
    }
    relu = [
        Point("relu", what, n, 1 / grid[n], 1.0, 1.0, 1, tuple(rounds[n])) for n in grid for what in (FORWARD, TRAINING)
    ]
    points = [*make_points({SDPA: dict.fromkeys(grid, 1.0), SOFTMAX: dict.fromkeys(grid, 1.0)})]
    points = [replace(point, rounds=(1.0,) * 7, median=1.0) for point in points]
    assert "; from how many tokens on it pays is undecided (below 25 to 660); " in advice(
        [*points, *relu], 640, 8, 6400
    )


def noisy_points(low: float, high: float) -> list[Point]:
    """At 64 tokens, relu trains between `low` and `high` times as fast as SDPA."""
    rounds = [1 / value for value in (low, low, low, (low * high) ** 0.5, high, high, high)]
    relu = [Point("relu", what, 64, 1.0, 1.0, 1.0, 1, tuple(rounds)) for what in (FORWARD, TRAINING)]
    return [*make_points({SDPA: {64: 1.0}, SOFTMAX: {64: 1.0}})[1::2], *relu, *_forward_of_softmax()]


def _forward_of_softmax() -> list[Point]:
    return [Point(name, FORWARD, 64, 1.0, 1.0, 1.0, 1, (1.0,) * 7) for name in (SDPA, SOFTMAX)]


def test_advice_is_undecided_if_the_interval_contains_one() -> None:
    assert advice(noisy_points(0.8, 1.4), 32, 4, 64) == (
        "at 32x32 with patch 4 (64 tokens) undecided: relu, the fastest other mixer, trains at 0.80 to 1.40 times the "
        "speed of softmax; the spread is wide: measure again on a quiet machine or with more --repeats"
    )


def test_advice_with_wide_interval_gives_its_ends_and_no_single_factor() -> None:
    found = advice(noisy_points(4.4, 11.1), 32, 4, 64)
    assert "relu attention trains 4.40 to 11.1 times faster than" in found
    assert found.endswith("the spread is wide: measure again on a quiet machine or with more --repeats")
    assert "spread" not in advice(noisy_points(4.2, 4.6), 32, 4, 64)
    assert "trains 4.40x (4.20 to 4.60) faster" in advice(noisy_points(4.2, 4.6), 32, 4, 64)
    slow = advice(noisy_points(0.2, 0.6), 32, 4, 64)
    assert "keep softmax: relu, the fastest other mixer, trains at 0.20 to 0.60 times the speed" in slow


def test_rows_have_the_ratio_with_its_spread() -> None:
    found = {(row["mixer"], row["what"]): row for row in rows(noisy_points(4.4, 11.1))}
    relu = found["relu", TRAINING]
    assert (relu["rounds"], relu["ratio_low"], relu["ratio_high"], relu["ratio_decided"]) == (
        7,
        pytest.approx(4.4),
        pytest.approx(11.1),
        False,
    )
    assert "ratio" not in found[SDPA, TRAINING]


def disturb(monkeypatch: pytest.MonkeyPatch, disturbed: int | None, factor: float, visits: range) -> None:
    """Replaces the clock of `measure_points`: softmax takes (N / 30)^2 ms, others N / 30.

    At `disturbed` tokens, softmax takes `factor` times as long in these visits.
    """
    count = [0]

    def time(calls: dict[tuple[str, str], Any], repeats: int) -> dict[tuple[str, str], Any]:
        tokens = next(iter(calls.values())).args[1].shape[2]
        slow = factor if tokens == disturbed and count[0] in visits else 1.0
        count[0] += tokens == disturbed
        sdpa = slow * (tokens / 30) ** 2
        return {key: describe([sdpa if key[0] in (SDPA, SOFTMAX) else tokens / 30] * repeats) for key in calls}

    monkeypatch.setattr(crossover_module, "interleave_calls", time)


SMALL = ("--batch", "1", "--heads", "1", "--head-dim", "4", "--mixer", "relu", "--image", "64", "--patch", "8")
SMALL_GRID = [part for tokens in (9, 17, 33, 129) for part in ("--tokens", str(tokens))]


@pytest.mark.parametrize(
    ("disturbed", "visits", "said", "unsaid"),
    [
        (None, 0, ["relu attention trains 2.17x"], ["measured again", "undecided", "spread"]),
        (65, 1, ["trains 2.17x", "measured again, because of noise or a jump: 65 tokens"], ["undecided", "spread"]),
        (
            65,
            2,
            [
                "relu attention trains 2.17 to 6.50 times faster",
                "the spread is wide: measure again on a quiet machine or with more --repeats",
                "undecided: 2 of 10 ratios after 21 rounds (the most for --repeats 7); their interval contains 1, "
                "or its ends differ by more than 1.5x",
            ],
            ["trains 6.50x"],
        ),
    ],
    ids=["clean", "disturbed once", "disturbed twice"],
)
def test_command_measures_a_disturbed_count_again_or_says_undecided(
    disturbed: int | None,
    visits: int,
    said: list[str],
    unsaid: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disturb(monkeypatch, disturbed, 3.0, range(visits))
    assert not run(monkeypatch, *SMALL, *SMALL_GRID)
    printed = capsys.readouterr().out
    assert all(text in printed for text in said)
    assert not any(text in printed for text in unsaid)


def test_quiet_points_have_no_line_about_disturbances() -> None:
    assert describe_disturbances(POINTS, 7) == []
