"""Comparisons of more than two variants: Holm's correction, order, verdicts, and the command."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from favorit import FavoritError
from favorit.cli.main import app
from favorit.config import RunConfig
from favorit.study import Options, load_study, multiple, run
from favorit.study.multiple import compare_all, holm, named_variants, study_variants
from favorit.study.statistics import compare, mcnemar, paired_bootstrap
from favorit.training.folder import RunFolder
from saved_data import RESULT, card
from training_helpers import tiny

LABELS = np.arange(1000) % 3


def write_run(folder: Path, layout: str, correct: np.ndarray, *, seed: int = 0, labels: np.ndarray = LABELS) -> str:
    """A complete run with these predictions; returns its path."""
    config: RunConfig = tiny(model=dict(layout=layout), seed=seed)
    place = RunFolder(folder / f"{layout}-{seed}")
    place.path.mkdir(parents=True)
    place.write_config(
        {
            "id": place.id,
            "layers": layout,
            "config": config.model_dump(mode="json"),
            "data": card(config.model.classes, config.model.channels),
        }
    )
    place.write_result({**RESULT, "test": {**RESULT["test"], "accuracy": float(correct.mean())}})
    place.write_predictions(np.eye(3)[np.where(correct, labels, (labels + 1) % 3)], labels)
    return str(place.path)


def right(count: int) -> np.ndarray:
    return np.arange(1000) < count


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run_command(*arguments: object) -> str:
        app(["compare", *map(str, arguments)], standalone_mode=False)
        return capsys.readouterr().out

    return run_command


def test_holm_equals_the_published_example():
    # Four hypotheses; Holm (1979) compares the smallest with alpha/4, the next with alpha/3, and so on.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]


def test_holm_rejects_no_true_hypothesis_in_95_percent_of_families():
    generator = np.random.default_rng(0)
    families = [min(holm(generator.uniform(size=20).tolist())) for _ in range(2000)]
    assert np.mean(np.array(families) < 0.05) == pytest.approx(0.05, abs=0.012)


def test_bootstrap_p_value_agrees_with_the_interval_and_with_mcnemar():
    a, b = right(530), right(500)
    found = paired_bootstrap(a, b)
    assert found.p == pytest.approx(2 / 10_001), "never 0"
    generator = np.random.default_rng(1)
    a, b = generator.random(1000) < 0.55, generator.random(1000) < 0.5
    found = paired_bootstrap(a, b)
    assert (found.p < 0.05) is (found.low > 0 or found.high < 0)
    assert found.p == pytest.approx(mcnemar(a, b), rel=0.4)
    assert paired_bootstrap(b, a).p == pytest.approx(found.p, rel=0.4)
    assert paired_bootstrap(a, a).p == 1


def test_pairs_are_ordered_by_accuracy_and_corrected_together(tmp_path: Path):
    given = [
        [write_run(tmp_path, layout, right(count))] for layout, count in (("relu", 500), ("elu", 509), ("exp", 600))
    ]
    found = compare_all(named_variants(given))
    assert [each.name for each in found.variants] == ["exp", "elu", "relu"]
    assert [(pair.a, pair.b) for pair in found.pairs] == [("exp", "elu"), ("exp", "relu"), ("elu", "relu")]
    assert {pair.test for pair in found.pairs} == {"McNemar"}
    assert [pair.p for pair in found.pairs] == [compare([pair.a], [pair.b], folder=tmp_path).p for pair in found.pairs]
    assert [pair.corrected for pair in found.pairs] == holm([pair.p for pair in found.pairs])
    assert [pair.verdict for pair in found.pairs] == ["better", "better", "better"]
    assert found.pairs[2].p == pytest.approx(2 * 0.5**9)


def test_correction_turns_a_small_difference_into_undecided(tmp_path: Path):
    # 7 discordant images: p = 0.0156. Nine other variants equal the second one, so the correction is at least 10-fold.
    first = [write_run(tmp_path, "relu", right(507))]
    second = [write_run(tmp_path, "elu", right(500))]
    others = [[write_run(tmp_path, f"relu(m={m})", right(500))] for m in range(1, 10)]
    (alone,) = compare_all(named_variants([first, second])).pairs
    assert (alone.p, alone.corrected, alone.verdict) == (pytest.approx(0.0156, abs=1e-4),) * 2 + ("better",)
    many = compare_all(named_variants([first, second, *others]), against="relu")
    assert {pair.b for pair in many.pairs} == {"relu"}
    assert {pair.verdict for pair in many.pairs} == {"undecided"}
    assert [pair.corrected for pair in many.pairs] == pytest.approx([0.156] * 10, abs=1e-3)


def test_variants_with_several_seeds_use_the_bootstrap(tmp_path: Path):
    given = [
        [write_run(tmp_path, layout, right(count + seed), seed=seed) for seed in (0, 1)]
        for layout, count in (("relu", 500), ("elu", 600))
    ]
    (pair,) = compare_all(named_variants(given)).pairs
    assert (pair.a, pair.test, pair.verdict) == ("elu", "bootstrap", "better")
    assert pair.p == pair.difference.p


def test_only_variants_on_the_same_images_are_paired(tmp_path: Path):
    given = [
        [write_run(tmp_path, layout, right(500), labels=labels)]
        for layout, labels in (("relu", LABELS), ("elu", LABELS), ("exp", LABELS[::-1]))
    ]
    assert [{pair.a, pair.b} for pair in compare_all(named_variants(given)).pairs] == [{"relu", "elu"}]
    with pytest.raises(FavoritError, match="no two of these variants were tested on the same images: relu, exp"):
        compare_all(named_variants([given[0], given[2]]))


def test_too_many_pairs_are_rejected_and_one_against_all_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(multiple, "MAX_PAIRS", 2)
    variants = named_variants([[write_run(tmp_path, layout, right(500))] for layout in ("relu", "elu", "exp")])
    with pytest.raises(FavoritError, match=r"3 variants give 3 pairs, more than 2: .*--against NAME.*--only PATTERN"):
        compare_all(variants)
    assert len(compare_all(variants, "relu").pairs) == 2


@pytest.mark.parametrize(
    ("against", "message"),
    [
        (
            "rleu(m=4)",
            "unknown variant in --against 'rleu(m=4)': did you mean 'relu(m=4)'? known: elu, relu, relu(m=4)",
        ),
        ("lu", "--against lu is in the names of 3 variants: relu, relu(m=4), elu"),
    ],
)
def test_unknown_baseline_is_rejected(tmp_path: Path, against: str, message: str):
    variants = named_variants([[write_run(tmp_path, layout, right(500))] for layout in ("relu", "relu(m=4)", "elu")])
    with pytest.raises(FavoritError, match=re.escape(message)):
        compare_all(variants, against)


def test_run_given_twice_is_rejected(tmp_path: Path):
    a, b = (write_run(tmp_path, layout, right(500)) for layout in ("relu", "elu"))
    message = "the run relu-0 is given twice: a run that is compared with itself shows no difference"
    for wrong in (lambda: compare(a, a), lambda: compare([a, a], b), lambda: named_variants([[a], [b], [a]])):
        with pytest.raises(FavoritError, match=f"^{message}$"):
            wrong()


def test_variants_of_a_study_are_its_groups_with_complete_runs(tmp_path: Path):
    study, options = load_study("quickstart"), Options(scale="smoke", seeds=(0, 1))
    run(study, tmp_path, options=Options(scale="smoke", seeds=(0, 1), only="uniform"))
    with pytest.raises(FavoritError, match=r"study quickstart has complete runs of 1 variant in .*--runs, --scale and"):
        study_variants(study, tmp_path, options)
    run(study, tmp_path, options=Options(scale="smoke", seeds=(0,), only="softmax"))
    variants, left_out = study_variants(study, tmp_path, options)
    assert {name: len(variant.runs) for name, variant in variants.items()} == {"layout=softmax": 1, "layout=uniform": 2}
    assert left_out == ["layout=favor(m=64)", "layout=relu(m=64)"]


# The command


def test_command_compares_all_pairs_of_a_study(tmp_path: Path, command: Callable[..., str]):
    run("quickstart", tmp_path, options=Options(scale="smoke", only=("uniform", "softmax")))
    arguments = ("quickstart", "--scale", "smoke", "--runs", tmp_path)
    out = command(*arguments)
    assert out.startswith("quickstart: scale smoke; protocol published\nvariant ")
    assert "McNemar's exact test (one run each); corrected with Holm's method for 1 comparison; undecided" in out
    assert "left out, because no run is complete: layout=favor(m=64), layout=relu(m=64)" in out
    printed = json.loads(command(*arguments, "--json"))
    names = [each["name"] for each in printed["variants"]]
    accuracies = [each["accuracy"]["mean"] for each in printed["variants"]]
    assert accuracies == sorted(accuracies, reverse=True)
    assert [(pair["a"], pair["b"]) for pair in printed["pairs"]] == [tuple(names)]
    titles, row = csv.reader(io.StringIO(command(*arguments, "--csv")))
    assert titles[:3] == ["variant", "against", "difference"]
    assert row[:2] == names
    assert row[titles.index("verdict")] == printed["pairs"][0]["verdict"]


def test_command_compares_several_variants_by_name(tmp_path: Path, command: Callable[..., str]):
    for layout, count in (("relu(m=8)", 500), ("elu", 600), ("exp", 610)):
        for seed in (0, 1):
            write_run(tmp_path, layout, right(count), seed=seed)
    config = tmp_path / "relu(m=8)-1" / "config.json"
    config.write_text(config.read_text().replace('"layers"', '"name": "mine", "layers"'))
    out = command("relu(m=8)-0,mine", "elu-0,elu-1", "exp-0,exp-1", "--runs", tmp_path, "--against", "exp", "--json")
    assert [(pair["a"], pair["verdict"]) for pair in json.loads(out)["pairs"]] == [
        ("elu", "worse"),
        ("relu(m=8)", "worse"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["elu-0"], "elu-0 is one variant: give another one to compare it with, or a study (hybrids, kernels, "),
        (["elu-0", "exp-0", "--scale", "small"], "--protocol and --data-dir choose the runs of a study: give a study"),
        (["elu-0", "exp-0", "--against", "elu"], "--against elu is valid for a study or at least three variants"),
        (["elu-0", "elu-0"], "the run elu-0 is given twice"),
        (["elu-0", "elu-0", "exp-0"], "the run elu-0 is given twice"),
        (["elu-0", "nope"], "nope is not a run: there is no such folder, and no run in"),
        (["nope.py"], "nope.py"),
    ],
)
def test_mistake_is_rejected(tmp_path: Path, command: Callable[..., str], arguments: list[str], message: str):
    for layout in ("elu", "exp"):
        write_run(tmp_path, layout, right(500))
    with pytest.raises(FavoritError, match=re.escape(message)):
        command(*arguments, "--runs", tmp_path)
