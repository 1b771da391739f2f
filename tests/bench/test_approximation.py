"""`favorit bench approximation`: errors compared with theory and known values, conclusion, figure, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pandas
import pytest
import torch

from checks_chart import drawn_texts, marks
from favorit import FavoritError, seeds
from favorit.attention import build_mixer
from favorit.attention.kernels.random_features import orthogonal_rows
from favorit.bench.approximation import (
    SERIES,
    Point,
    Setting,
    approximate,
    conclude,
    distance,
    output_error,
    trigonometric,
)
from favorit.bench.approximation_figure import BASELINE, INDEPENDENT, ORTHOGONAL, draw, error_table, panels
from favorit.charts.palette import FIXED
from favorit.cli.approximation import approximation, parse_counts
from favorit.cli.shared import TableForm

SMALL = Setting(head_dim=8, tokens=12, stds=(0.5, 1.0), m=(8, 16), draws=3)


def errors(points: list[Point]) -> dict[tuple[str, int | None, float], float]:
    return {(point.kernel, point.m, point.std): point.mean for point in points}


@pytest.fixture(scope="module")
def wide() -> list[Point]:
    """Heads of width 64, as in the literature."""
    kernels = ("favor", "favor(orthogonal=False)", "favor(features=hyperbolic)", "trigonometric")
    return approximate(Setting(stds=(0.25, 1.0), m=(64, 128, 1024), draws=4), kernels)


def test_favor_has_known_errors(wide):
    found = errors(wide)
    assert found["favor", 64, 0.25] == pytest.approx(0.11, abs=0.01)
    assert found["favor", 1024, 0.25] == pytest.approx(0.03, abs=0.005)
    assert found["uniform", None, 1.0] == pytest.approx(0.79, abs=0.02)
    assert all(found["favor", m, 1.0] > 2 * found["uniform", None, 1.0] for m in (64, 1024))


@pytest.mark.parametrize(("m", "known"), [(64, 0.88), (1024, 0.79)])
def test_known_errors_at_unit_variance_come_from_the_added_constant(m, known):
    """Adding 1e-4 to each feature, as other implementations do, moves the estimate towards uniform averaging."""

    def features(x: torch.Tensor, rows: torch.Tensor, over: tuple[int, ...]) -> torch.Tensor:
        u = x @ rows.T
        return torch.exp(u - x.square().sum(-1, keepdim=True) / 2 - u.amax(over, keepdim=True)) + 1e-4

    found = []
    for draw_number in range(4):
        generator = seeds.generator(draw_number, "field")
        q, k, v = torch.randn(3, 8, 1, 256, 64, generator=generator, dtype=torch.float64)
        rows = orthogonal_rows(m, 64, generator)
        w = features(q / 64**0.25, rows, (-1,)) @ features(k / 64**0.25, rows, (-1, -2)).mT
        found.append(output_error(w / w.sum(-1, keepdim=True), (q @ k.mT / 8).softmax(-1), v))
    assert sum(found) / 4 == pytest.approx(known, abs=0.03)


@pytest.mark.parametrize("std", [0.25, 0.5, 1.0])
def test_uniform_averaging_has_its_theoretical_error(std):
    """Logits are normal with variance std^4, so the weights are log-normal: error^2 = 1 - exp(-std^4)."""
    found = approximate(Setting(tokens=256, stds=(std,), m=(1,), draws=4), ())
    assert [point.kernel for point in found] == ["uniform"]
    assert found[0].mean == pytest.approx(math.sqrt(-math.expm1(-(std**4))), rel=0.05)


def test_orthogonal_rows_and_hyperbolic_features_reduce_the_error(wide):
    found = errors(wide)
    assert found["favor", 128, 0.25] < 0.9 * found["favor(orthogonal=False)", 128, 0.25]
    assert found["favor(features=hyperbolic)", 128, 0.25] < 0.6 * found["favor", 128, 0.25]


def test_only_signed_features_lose_rows(wide):
    lost = {(point.kernel, point.m, point.std): point.lost for point in wide}
    assert lost["trigonometric", 64, 1.0] == pytest.approx(0.5, abs=0.1)
    assert lost["trigonometric", 1024, 0.25] == 0
    assert all(share == 0 for (kernel, _, _), share in lost.items() if kernel != "trigonometric")


def test_trigonometric_features_estimate_the_exponential_without_bias():
    q, k = 0.6 * torch.randn(2, 1, 1, 5, 4, generator=seeds.generator(0, "test"))
    raw = torch.stack([trigonometric(4, seed, m=1024)(q, k) for seed in range(300)]).mean(0)
    # The factors that the weights drop in each row: that of the query, and the largest of the keys.
    factor = (q.square().sum(-1, keepdim=True) + k.square().sum(-1).amax(-1)[..., None, None]) / (2 * 4**0.5)
    torch.testing.assert_close(raw / 512 * factor.exp(), (q @ k.mT / 2).exp(), rtol=0.02, atol=0)


def test_error_and_distance_match_their_definitions():
    exact, w = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]]), torch.tensor([[[[0.5, 0.5], [0.5, 0.5]]]])
    v = torch.tensor([[[[2.0], [0.0]]]])
    assert output_error(w, exact, v) == pytest.approx(1 / math.sqrt(5))
    assert distance(w, exact).item() == 0.25


def test_kernel_is_measured_at_every_m_unless_its_spec_fixes_m():
    found = approximate(SMALL, ("favor", "relu", "relu(m=5)", "favor(m=128)"))
    assert {(point.kernel, point.m) for point in found} == {
        ("uniform", None), ("favor", 8), ("favor", 16), ("relu", None), ("relu(m=5)", 5), ("favor(m=128)", 128)
    }  # fmt: skip
    assert len(found) == 2 * 6
    assert all(0 < point.low <= point.error <= point.high and point.deviation > 0 for point in found)


def test_draws_depend_only_on_the_seed():
    one, again, other = (approximate(replace(SMALL, seed=seed), ("favor",)) for seed in (0, 0, 1))
    assert one == again
    assert all(a.error != b.error for a, b in zip(one, other, strict=True))


def test_every_draw_has_new_random_features(monkeypatch: pytest.MonkeyPatch):
    built: list[int] = []

    def build(spec, **options):
        if str(spec) == "favor(m=8)":
            built.append(options["seed"])
        return build_mixer(spec, **options)

    monkeypatch.setattr("favorit.bench.approximation.build_mixer", build)
    approximate(replace(SMALL, stds=(0.5,)), ("favor",))
    seeds_of_draws = built[1:]  # the first one only validates the spec
    assert len(set(seeds_of_draws)) == len(seeds_of_draws) == SMALL.draws


def test_default_kernels_are_measured_with_progress():
    progress: list[tuple[int, int]] = []
    found = approximate(SMALL, listen=lambda done, total: progress.append((done, total)))
    assert {point.kernel for point in found} == {"uniform", *SERIES}
    assert progress[-1] == (len(progress), len(progress))
    assert len(progress) == len(found) * SMALL.draws


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("favr", "did you mean 'favor'.*trigonometric"),
        ("favor(n=3)", "unknown parameter of favor"),
        ("softmax", "unknown kernel"),
        ("trigonometric(m=7)", "m must be even"),
        ("favor(m=1000000000)", "tokens=12 needs .* GiB .* at most 0 tokens fit"),
    ],
)
def test_invalid_kernel_is_rejected_before_measuring(kernel, message):
    with pytest.raises(FavoritError, match=message):
        approximate(SMALL, ("favor", kernel), listen=lambda done, total: pytest.fail("measured"))


def test_size_that_exceeds_memory_is_rejected_before_allocation():
    with pytest.raises(FavoritError, match=r"tokens=10000000 needs .* GiB and .* are free: at most \d+ tokens fit"):
        approximate(replace(SMALL, tokens=10_000_000))


@pytest.mark.parametrize(
    "wrong",
    [{"head_dim": 0}, {"tokens": 1}, {"draws": 0}, {"m": (0,)}, {"m": ()}, {"stds": (0.0,)}, {"stds": (math.nan,)}],
)
def test_invalid_settings_are_rejected(wrong):
    with pytest.raises(FavoritError, match=next(iter(wrong)).removesuffix("s")):
        replace(SMALL, **wrong)


def point(kernel: str, m: int | None, std: float, error: float) -> Point:
    return Point(kernel, m, std, error, 0.9 * error, 1.1 * error, error, 0.1 * error, distance=0.1, lost=0.0)


POINTS = [
    point("uniform", None, 0.25, 0.06),
    point("favor", 64, 0.25, 0.11),
    point("favor", 256, 0.25, 0.05),
    point("favor", 1024, 0.25, 0.03),
    point("favor(orthogonal=False)", 256, 0.25, 0.055),
    point("trigonometric", 64, 0.25, 0.01),
    point("relu", None, 0.25, 0.3),
    point("uniform", None, 1.0, 0.79),
    point("favor", 64, 1.0, 2.5),
    point("favor", 1024, 1.0, 1.9),
    point("favor(orthogonal=False)", 256, 1.0, 2.2),
    point("trigonometric", 64, 1.0, 300.0),
    point("relu", None, 1.0, 0.7),
]


def test_conclusion_states_where_random_features_win_and_what_to_do_elsewhere():
    sentence = conclude(POINTS)
    assert "at std 0.25 from m=256 on (favor 0.05, uniform 0.06)" in sentence
    assert (
        ", but not at std 1 (favor 1.9, uniform 0.79) up to m=1024: keep softmax there, or shrink q and k for random"
        in sentence
    )
    assert sentence.count(". ") == 0
    assert "shrink" not in conclude([each for each in POINTS if each.std == 0.25])


def test_conclusion_fits_the_measured_kernels():
    without_m = conclude([each for each in POINTS if each.m is None])
    assert without_m.startswith(
        "These kernels beat uniform averaging at std 1 (relu 0.7, uniform 0.79), "
        "but not at std 0.25 (relu 0.3, uniform 0.06):"
    )
    losing = conclude([each for each in POINTS if each.std == 1.0])
    assert losing.startswith(
        "Random features do not beat uniform averaging at std 1 (favor 1.9, uniform 0.79) up to m=1024:"
    )
    tie = conclude([point("uniform", None, 1.0, 0.8), point("learned", None, 1.0, 0.799)])
    assert tie.startswith("These kernels do not beat uniform averaging at std 1 (learned 0.8, uniform 0.8)")
    assert conclude([each for each in POINTS if each.kernel in ("uniform", "trigonometric")]).startswith(
        "None of the measured kernels can be used in a mixer"
    )


def test_panels_have_all_curves():
    small, large = panels(POINTS)
    assert (small.std, small.uniform, large.std, large.uniform) == (0.25, 0.06, 1.0, 0.79)
    curves = {curve.kernel: curve for curve in small.curves}
    assert list(curves) == ["favor", "favor(orthogonal=False)", "trigonometric", "relu"]
    assert curves["favor"].m == (64, 256, 1024)
    assert curves["favor"].error == (0.11, 0.05, 0.03)
    assert curves["favor(orthogonal=False)"].family == "favor"
    assert [curve.orthogonal for curve in small.curves] == [True, False, True, True]
    assert curves["relu"].m == ()


def test_errors_are_relative_to_uniform_averaging():
    table = error_table(panels(POINTS))
    favor = table[(table["std"] == 0.25) & (table["family"] == "favor")]
    assert list(favor[favor["rows"] == ORTHOGONAL]["error"]) == pytest.approx([0.11 / 0.06, 0.05 / 0.06, 0.03 / 0.06])
    assert list(favor[favor["rows"] == INDEPENDENT]["error"]) == pytest.approx([0.055 / 0.06])
    assert list(favor["low"]) == pytest.approx(list(0.9 * favor["error"]))
    assert list(table[table["kernel"] == "relu"]["m"].isna()) == [True, True]


def test_figure_has_small_multiples_with_shared_axes_and_uniform_dashed_at_one():
    """A row per std, a column per family and one for kernels without m."""
    chart = draw(panels(POINTS), "title")
    drawn = marks(chart)
    levels = [mark for mark in drawn if mark["type"] == "rule" and mark["rows"] == [{"error": 1.0, "rows": BASELINE}]]
    assert len(levels) == 2 * 3
    scale = levels[0]["encoding"]["y"]["scale"]
    assert scale["type"] == "log"
    assert scale["domain"][1] < 10
    assert all(
        mark["encoding"]["y"]["scale"] == scale
        for mark in drawn
        if mark["type"] in ("line", "rule", "point") and "scale" in mark["encoding"]["y"]
    )
    points = [mark["rows"] for mark in drawn if mark["type"] == "point"]
    assert [{row["family"] for row in rows} for rows in points] == [{"favor"}, {"trigonometric"}, {"relu"}] * 2
    lines = [mark for mark in drawn if mark["type"] == "line"]
    assert [{row["family"] for row in mark["rows"]} for mark in lines] == [{"favor"}] * 2, "one m has no line"
    dashes = lines[0]["encoding"]["strokeDash"]["scale"]
    assert len({tuple(dash) for dash in dashes["range"]}) == len(dashes["domain"]) == 3
    assert {row["color"] for row in lines[0]["rows"]} == {FIXED["favor"]}
    texts = drawn_texts(chart)
    assert {"favor", "trigonometric", "kernels without m", "std of q, k: 0.25", "std of q, k: 1"} <= set(texts)
    assert {"uniform: error 0.06", "uniform: error 0.79", "above the panel:", "380x or more", "relu"} <= set(texts)
    assert {ORTHOGONAL, INDEPENDENT, BASELINE} <= set(texts), "the legend"


@pytest.mark.parametrize(
    "kernels",
    [("relu",), ("favor",), ("favor(features=hyperbolic, norm=regular, redraw=100)", "learned(hidden=128)", "relu")],
)
def test_figure_of_any_kernels_has_no_cut_text(kernels: tuple[str, ...]):
    content = panels(
        [
            point("uniform", None, 0.5, 0.2),
            *(point(kernel, m, 0.5, 0.1) for kernel in kernels for m in ((None,) if kernel == "relu" else (16, 1024))),
        ]
    )
    texts = drawn_texts(draw(content, "Kernels and softmax attention\nhead width 64, 128 tokens"))
    assert "head width 64, 128 tokens" in texts
    whole = "".join(texts).replace(" ", "")
    assert all(kernel.replace(" ", "") in whole for kernel in kernels)


def test_command_writes_table_conclusion_csv_figure_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files = dict(out=tmp_path / "error.csv", figure=tmp_path / "error.png")
    approximation(
        head_dim=8,
        tokens=12,
        stds=[1.0],
        m="8,16",
        kernels=["favor", "relu", "trigonometric"],
        draws=2,
        seed=0,
        **asdict(TableForm(as_json=True)),
        **files,
    )
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert "foreign_load" in report
    rows = {line.split()[0]: line.split()[1:] for line in printed.err.splitlines() if line.strip()}
    assert rows["kernel"] == ["without", "m", "m=8", "m=16"]
    assert rows["uniform"] == [f"{each['error']:.3f}" for each in report["points"] if each["kernel"] == "uniform"]
    assert rows["favor"] == [f"{each['error']:.3f}" for each in report["points"] if each["kernel"] == "favor"]
    assert report["conclusion"] in printed.err.replace("\n", "")
    assert "do not sum to a positive number: trigonometric in up to" in printed.err
    points = [Point(**each) for each in report["points"]]
    assert points == approximate(Setting(8, 12, (1.0,), (8, 16), 2), ("favor", "relu", "trigonometric"))
    table = pandas.read_csv(files["out"])
    assert table["kernel"].tolist() == ["uniform", "favor", "favor", "relu", "trigonometric", "trigonometric"]
    assert set(table.columns) == set(asdict(points[0]))
    assert files["figure"].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "8;16", "0", "-4", "8,x"])
def test_counts_not_separated_by_commas_are_rejected(text):
    assert parse_counts("--m", "64, 8,64") == (8, 64)
    with pytest.raises(FavoritError, match=r"--m .*separated by commas"):
        parse_counts("--m", text)
