"""Intervals have their stated coverage, tests their stated error rate, and comparisons list confounders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import favorit
from favorit import FavoritError, RunConfig
from favorit.study.statistics import aggregate, compare, confounded, mcnemar, paired_bootstrap, read_variant
from favorit.training.folder import RunFolder
from saved_data import RESULT, card
from training_helpers import fit, tiny

REPETITIONS = 400
# The 99.9 % range of an observed rate of 5 % over this many repetitions.
MOST_REJECTIONS = stats.binom.ppf(0.999, REPETITIONS, 0.05) / REPETITIONS


# One variant


def test_aggregate_is_the_t_interval():
    values = [0.91, 0.93, 0.90, 0.95, 0.94]
    found = aggregate(values)
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (found.n, found.mean) == (5, pytest.approx(np.mean(values)))
    assert found.deviation == pytest.approx(np.std(values, ddof=1))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_interval_of_two_values_is_wide():
    """t(1) is 12.7: two seeds that differ by one point have an interval of 12.7 points."""
    found = aggregate([0.90, 0.91])
    assert found.high - found.low == pytest.approx(0.127, abs=1e-3)


def test_one_value_has_no_interval():
    found = aggregate([0.5])
    assert (found.mean, found.deviation, found.low, found.high, found.n) == (0.5, None, None, None, 1)


def test_aggregate_of_no_values_is_an_error():
    with pytest.raises(FavoritError, match="no values to aggregate"):
        aggregate([])


def test_t_interval_covers_the_mean_in_95_percent():
    generator = np.random.default_rng(0)
    found = [aggregate(generator.normal(0.9, 0.02, 4).tolist()) for _ in range(REPETITIONS)]
    covered = np.mean([each.low <= 0.9 <= each.high for each in found])
    assert 1 - MOST_REJECTIONS <= covered <= 0.98


# Two variants on the same images: each image has a difficulty that both share


def outcomes(
    generator: np.random.Generator, images: int, skill: float, seeds: int = 1, spread: float = 0.0, noise: float = 0.5
) -> Any:
    """A function that maps difficulties (images) to correctness (seeds, images): skill + noise > difficulty."""

    def draw(difficulty: np.ndarray) -> np.ndarray:
        own = skill + generator.normal(0, spread, (seeds, 1)) if spread else np.full((seeds, 1), skill)
        return own + generator.normal(0, noise, (seeds, images)) > difficulty

    return draw


def truth(skill: float, spread: float, noise: float = 0.5, difficulty: float = 1.5) -> float:
    """The expected accuracy over images and seeds."""
    return float(stats.norm.cdf(skill / math.sqrt(difficulty**2 + noise**2 + spread**2)))


def coverage(seeds: int, spread: float, images: int = 500) -> float:
    """How often the bootstrap interval contains the true difference."""
    generator = np.random.default_rng(1)
    expected = truth(0.6, spread) - truth(0.4, spread)
    covered = 0
    for _ in range(REPETITIONS):
        difficulty = generator.normal(0, 1.5, images)
        a, b = (outcomes(generator, images, skill, seeds, spread)(difficulty) for skill in (0.6, 0.4))
        found = paired_bootstrap(a, b, draws=600)
        covered += found.low <= expected <= found.high
    return covered / REPETITIONS


def test_bootstrap_over_images_covers_the_difference_in_95_percent():
    assert coverage(seeds=1, spread=0.0) >= 1 - MOST_REJECTIONS


def test_bootstrap_over_seeds_and_images_covers_the_difference_if_seeds_vary():
    """Here an interval from resampled images alone would cover the difference a third of the time."""
    assert coverage(seeds=6, spread=0.3) >= 0.90


def test_bootstrap_of_one_seed_does_not_cover_other_seeds():
    """`favorit compare` prints this limitation."""
    assert coverage(seeds=1, spread=0.3) < 0.5


def test_bootstrap_equals_resampling_of_images():
    """The direct form draws image indices with replacement."""
    generator = np.random.default_rng(2)
    a, b = generator.random((2, 300)) < np.array([[0.8], [0.75]])
    draws = [np.mean(a[chosen].astype(float) - b[chosen]) for chosen in generator.integers(0, 300, (4000, 300))]
    found = paired_bootstrap(a, b, draws=20_000, seed=3)
    assert found.mean == pytest.approx(a.mean() - b.mean())
    assert (found.low, found.high) == (
        pytest.approx(np.quantile(draws, 0.025), abs=0.006),
        pytest.approx(np.quantile(draws, 0.975), abs=0.006),
    )


def test_pairing_narrows_the_interval():
    """Two runs that differ in 5 of 400 images have a much narrower interval than two unrelated runs with the same
    accuracies.
    """
    a = np.arange(400) < 300
    b = a.copy()
    b[:5] = False
    paired, apart = paired_bootstrap(a, b), paired_bootstrap(a, np.roll(b, 137))
    assert paired.mean == apart.mean == pytest.approx(0.0125)
    assert paired.high - paired.low < (apart.high - apart.low) / 4
    assert paired.low > 0 > apart.low


def test_bootstrap_depends_only_on_data_and_seed():
    generator = np.random.default_rng(3)
    a, b = generator.random((2, 3, 50)) < 0.7
    first, again, other = (paired_bootstrap(a, b, draws=99, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_bootstrap_in_chunks_agrees_with_fewer_draws():
    generator = np.random.default_rng(4)
    a, b = generator.random((2, 8, 2000)) < 0.7
    found, fewer = paired_bootstrap(a, b, draws=10_000), paired_bootstrap(a, b, draws=4_000)
    assert (found.low, found.high) == (pytest.approx(fewer.low, abs=1.5e-3), pytest.approx(fewer.high, abs=1.5e-3))


@pytest.mark.parametrize(("a", "b"), [([True], [True, False]), ([], []), ([[[True]]], [True])])
def test_different_images_are_rejected(a, b):
    with pytest.raises(FavoritError, match="images"):
        paired_bootstrap(a, b)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (0, 5), (3, 9), (12, 2), (40, 41), (400, 331)])
def test_mcnemar_is_the_binomial_test_of_the_discordant_images(only_a, only_b):
    a = [True] * only_a + [False] * only_b + [True] * 7 + [False] * 3
    b = [False] * only_a + [True] * only_b + [True] * 7 + [False] * 3
    expected = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert mcnemar(a, b) == pytest.approx(expected)


def test_mcnemar_known_value():
    """Exactly one run is right on each of ten images, the same run on nine: p = 2 (1 + 10) / 2^10."""
    assert mcnemar([True] * 9 + [False], [False] * 9 + [True]) == pytest.approx(22 / 1024)


def test_mcnemar_rejects_several_runs():
    with pytest.raises(FavoritError, match="one run of each"):
        mcnemar([[True, False]], [[True, False]])


def test_mcnemar_false_positive_rate_is_at_most_5_percent():
    generator = np.random.default_rng(5)
    rejected = 0
    for _ in range(REPETITIONS):
        difficulty = generator.normal(0, 1.5, 600)
        a, b = (outcomes(generator, 600, 0.5)(difficulty)[0] for _ in range(2))
        rejected += mcnemar(a, b) < 0.05
    # An exact test of a count rejects slightly less often than 5 %.
    assert 0.01 <= rejected / REPETITIONS <= MOST_REJECTIONS


def test_mcnemar_detects_a_real_difference():
    generator = np.random.default_rng(6)
    difficulty = generator.normal(0, 1.5, 5000)
    a, b = (outcomes(generator, 5000, skill)(difficulty)[0] for skill in (0.7, 0.3))
    assert mcnemar(a, b) < 1e-6


# Runs on disk


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[favorit.Run]]:
    out = tmp_path_factory.mktemp("runs")
    layouts = {"softmax": "softmax", "relu": "relu(m=8)"}
    return {
        name: [fit(out, tiny(model=dict(layout=layout), seed=seed))[0] for seed in (0, 1)]
        for name, layout in layouts.items()
    }


def written(
    folder: Path, config: RunConfig, correct: np.ndarray, labels: np.ndarray, parameters: int = 1000, **result: Any
) -> favorit.Run:
    """A run folder with the files of a complete run and the given predictions."""
    folder.mkdir()
    run = RunFolder(folder)
    data = card(config.model.classes, config.model.channels)
    run.write_config(
        {"id": folder.name, "layers": config.model.layout, "config": config.model_dump(mode="json"), "data": data}
    )
    run.write_result({**RESULT, "parameters": parameters, **result})
    predicted = np.where(correct, labels, (labels + 1) % 3)
    np.savez_compressed(folder / "predictions.npz", logits=np.eye(3)[predicted], labels=labels)
    return favorit.Run(folder)


LABELS = np.arange(1000) % 3


def test_compare_of_trained_runs(trained):
    found = compare([trained["relu"][0].path], [trained["softmax"][0].path])
    accuracies = [trained[name][0].result["test"]["accuracy"] for name in ("relu", "softmax")]
    assert [found.accuracy_a.mean, found.accuracy_b.mean] == pytest.approx(accuracies)
    assert found.difference.mean == pytest.approx(accuracies[0] - accuracies[1])
    assert found.difference.low <= found.difference.mean <= found.difference.high
    assert (found.a, found.b, found.images, found.confounded) == ("relu(m=8)", "softmax", 48, [])
    assert 0 < found.p <= 1


def test_seeds_of_a_variant_are_aggregated(trained):
    found = compare(*([run.path for run in trained[name]] for name in ("relu", "softmax")))
    accuracies = [run.result["test"]["accuracy"] for run in trained["relu"]]
    assert found.accuracy_a == aggregate(accuracies)
    assert found.p is None


def test_sentence_states_the_difference_and_the_verdict(tmp_path: Path):
    a = written(tmp_path / "a", tiny(model=dict(layout="relu")), np.arange(1000) < 508, LABELS)
    b = written(tmp_path / "b", tiny(), np.arange(1000) < 500, LABELS)
    c = written(tmp_path / "c", tiny(), np.arange(1000)[::-1] < 500, LABELS)
    above = compare([a.path], [b.path])
    assert (
        above.sentence
        == "relu is 0.8 points above all_standard on the same 1,000 images (95 % interval 0.3 to 1.4): better"
    )
    below = compare([b.path], [a.path])
    assert "all_standard is 0.8 points below relu" in below.sentence
    assert below.sentence.endswith("): worse")
    assert (below.difference.low, below.difference.high) == pytest.approx(
        (-above.difference.high, -above.difference.low), abs=1e-3
    )
    assert compare([a.path], [c.path]).sentence.endswith("): undecided")


def test_sentence_about_equal_accuracies_names_no_side(tmp_path: Path):
    a = written(tmp_path / "a", tiny(model=dict(layout="relu")), np.arange(1000) < 500, LABELS)
    c = written(tmp_path / "c", tiny(), np.arange(1000)[::-1] < 500, LABELS)
    found = compare([a.path], [c.path])
    assert found.sentence.startswith("relu is as accurate as all_standard on the same 1,000 images")
    assert "relu: 50.00%, 1 run\n" in repr(found)


def test_variants_with_the_same_mixer_are_named_by_their_runs(tmp_path: Path):
    recipes = {"a": 0.1, "b": 0.2}
    runs = [
        written(tmp_path / (name * 16), tiny(train=dict(lr=lr)), LABELS == 0, LABELS) for name, lr in recipes.items()
    ]
    found = compare([runs[0].path], [runs[1].path])
    assert (found.a, found.b) == ("all_standard (aaaaaaaa)", "all_standard (bbbbbbbb)")


DIFFERENCES: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "mixer": (dict(model=dict(layout="relu(m=64)")), 1000, []),
    "mixer and position": (dict(model=dict(layout="relu", position="rope2d")), 1080, []),
    "seed": (dict(seed=3), 1000, []),
    "spelling": (dict(model=dict(stem="patch(size=(4, 4))"), train=dict(optimizer="adamw()")), 1000, []),
    "stem": (
        dict(model=dict(stem="conv(channels=(4,))")),
        1000,
        ["stem patch against conv(channels=(4,))", "tokens 4 against 16"],
    ),
    "tokens": (
        dict(model=dict(stem="patch(2)")),
        1000,
        ["stem patch against patch(size=(2, 2))", "tokens 4 against 16"],
    ),
    "parameters": (dict(model=dict(dim=16)), 1101, ["parameters 1,000 against 1,101"]),
    "recipe": (
        dict(train=dict(lr=0.02, clip=1.0)),
        1000,
        ["train.lr 0.01 against 0.02", "train.clip none against 1.0"],
    ),
    "data": (dict(data=dict(augment="flip")), 1000, ["data.augment none against flip"]),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_confounded_lists_differences_other_than_the_mixer(tmp_path: Path, name):
    changes, parameters, expected = DIFFERENCES[name]
    size = dict(image_size=8, classes=3)
    a = tiny(model=size)
    b = tiny(**{**changes, "model": {**size, **changes.get("model", {})}})
    runs = [
        written(tmp_path / "a", a, LABELS == 0, LABELS),
        written(tmp_path / "b", b, LABELS == 0, LABELS, parameters=parameters),
    ]
    assert confounded(*runs) == expected
    mirrored = [" against ".join(reversed(phrase.split(" ", 1)[1].split(" against "))) for phrase in expected]
    assert [phrase.split(" ", 1)[1] for phrase in confounded(*reversed(runs))] == mirrored


def test_runs_that_cannot_be_compared_are_rejected(tmp_path: Path):
    a = written(tmp_path / "a", tiny(), LABELS == 0, LABELS)
    other = written(tmp_path / "other", tiny(seed=1), LABELS == 0, LABELS[::-1])
    with pytest.raises(FavoritError, match=r"a and .*other were tested on different images"):
        compare([a.path], [other.path])
    with pytest.raises(FavoritError, match=r"other and .*a were tested on different images"):
        read_variant([a.path, other.path])
    pruned = written(tmp_path / "pruned", tiny(), LABELS == 0, LABELS, status="pruned")
    with pytest.raises(FavoritError, match="is pruned, not complete"):
        compare([a.path], [pruned.path])
    (tmp_path / "other" / "result.json").unlink()
    with pytest.raises(FavoritError, match="other is not finished"):
        compare([a.path], [other.path])
    with pytest.raises(FavoritError, match="nowhere is not a run: there is no such folder"):
        compare([a.path], [tmp_path / "nowhere"])
    with pytest.raises(FavoritError, match="not seeds of one variant"):
        read_variant([a.path, written(tmp_path / "lr", tiny(train=dict(lr=0.5)), LABELS == 0, LABELS).path])
    (a.path / "predictions.npz").write_bytes(b"half")
    with pytest.raises(FavoritError, match=r"predictions\.npz cannot be read"):
        read_variant([a.path])
    with pytest.raises(FavoritError, match="none is given"):
        read_variant([])


# The command


def compare_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    import typer

    from favorit.cli.compare import compare as command

    app = typer.Typer()
    app.command()(command)
    app(list(map(str, arguments)), standalone_mode=False)
    return capsys.readouterr().out


def test_command_prints_accuracies_a_sentence_and_confounders(tmp_path: Path, capsys):
    a = written(tmp_path / "a", tiny(model=dict(layout="relu")), np.arange(1000) < 508, LABELS)
    b = written(tmp_path / "b", tiny(train=dict(lr=0.5)), np.arange(1000) < 500, LABELS, parameters=2000)
    out = compare_command(capsys, a.path, b.path)
    found = compare([a.path], [b.path])
    assert found.sentence in out
    assert "50.80%" in out
    assert "McNemar: p = 0.00781" in out
    assert "the interval covers images, not other seeds" in out
    assert "confounded by parameters 1,000 against 2,000; train.lr 0.01 against 0.5" in out
    printed = json.loads(compare_command(capsys, a.path, b.path, "--json"))
    assert (printed["sentence"], printed["confounded"]) == (found.sentence, found.confounded)
    assert printed["difference"]["mean"] == pytest.approx(0.008)


def test_command_accepts_seeds_separated_by_commas(trained, capsys):
    sides = [",".join(str(run.path) for run in trained[name]) for name in ("relu", "softmax")]
    printed = json.loads(compare_command(capsys, *sides, "--json"))
    assert (printed["accuracy_a"]["n"], printed["accuracy_b"]["n"], printed["p"], printed["confounded"]) == (
        2,
        2,
        None,
        [],
    )
    out = compare_command(capsys, *sides)
    assert "McNemar" not in out
    assert "other seeds" not in out
    low, high = printed["accuracy_a"]["low"], printed["accuracy_a"]["high"]
    assert f"{max(low, 0):.2%} to {min(high, 1):.2%}" in out, "no accuracy lies outside 0 to 1"


def test_command_shows_published_accuracies_of_runs_of_a_built_in_study(tmp_path: Path, capsys):
    from favorit.study import load_study

    configs = load_study("hybrids").configs()
    names = [f"data=cifar10 layout={layout}" for layout in ("all_performer performer=relu(m=32)", "all_standard")]
    first, second = (configs[name] for name in names)
    a = written(tmp_path / "a", first.replace(train=first.train.replace(epochs=5)), np.arange(1000) < 508, LABELS)
    b = written(tmp_path / "b", second, np.arange(1000) < 500, LABELS)
    out = compare_command(capsys, a.path, b.path)
    assert "74.27%" in out
    assert "published difference: +1.31 points (hybrids rows 43 and 90, section 6, Table 2; Bennouna" in out
    assert "differs from the published recipe: train.epochs 5 instead of 50" in out
    printed = json.loads(compare_command(capsys, a.path, b.path, "--json"))
    assert printed["published_a"]["values"] == [
        {"table": "hybrids", "row": 43, "value": 74.27, "place": "section 6, Table 2"}
    ]
    assert printed["published_differences"][0]["low"] == pytest.approx(1.31)


def test_command_shows_no_published_column_for_runs_of_no_study(tmp_path: Path, capsys):
    a = written(tmp_path / "a", tiny(model=dict(layout="relu")), np.arange(1000) < 508, LABELS)
    b = written(tmp_path / "b", tiny(), np.arange(1000) < 500, LABELS)
    assert "published" not in compare_command(capsys, a.path, b.path)
