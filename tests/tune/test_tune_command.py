"""`favorit tune`: its output and files, and the data of its figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
import typer
import yaml
from PIL import Image

import favorit.tuning
from checks_chart import drawn_texts, marks
from favorit import FavoritError, RunConfig, measure
from favorit.cli.configuration import build_config
from favorit.cli.tune import tune
from favorit.tuning.figures import History, draw, history, importances
from favorit.tuning.result import TrialRecord, TuneResult, write_front
from favorit.tuning.spaces import SPACES
from training_helpers import fit
from tune_helpers import EASY, count_products, easy, folders, search

SETTINGS = [
    part
    for section, fields in EASY.items()
    for key, value in fields.items()
    for part in ("--set", f"{section}.{key}={value}")
]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `favorit tune ...` in this process and returns its output."""
    monkeypatch.setenv("COLUMNS", "250")
    app = typer.Typer()
    app.command()(tune)

    def run(*arguments: object) -> str:
        capsys.readouterr()
        app(["--accelerator", "cpu", *map(str, arguments)], standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_command_searches_and_writes_the_best_configuration(command, tmp_path: Path):
    (tmp_path / "rates.yaml").write_text("train.lr: choice(0.03, 0.02, 0.01, 0.005)\nmodel.depth: choice(1, 2)\n")
    arguments = (
        tmp_path / "rates.yaml",
        *SETTINGS,
        "--sampler",
        "grid",
        "--trials",
        "5",
        "--pruner",
        "none",
        "--out",
        tmp_path / "runs",
    )
    out = command(*arguments)
    lines = out.splitlines()
    assert sum(line.startswith("trial ") and " starts: train.lr " in line for line in lines) == 5
    assert sum(line.startswith("trial ") and " is complete: " in line for line in lines) == 5
    assert "5 of 5 trials: 5 complete" in lines
    assert any(
        line.startswith("importance for accuracy: ") and "train.lr" in line and "model.depth" in line for line in lines
    )
    best = tmp_path / "runs" / "rates-best.yaml"
    assert f"best configuration: {best}; train it with: favorit train --config {best}" in lines
    result = json.loads(command(*arguments, "--json").splitlines()[-1])
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 5
    assert {trial["run"] for trial in result["trials"]} == folders(tmp_path / "runs")
    scores = {trial["run"]: trial["values"][0] for trial in result["trials"]}
    assert scores[result["best"]["run"]] == max(scores.values())
    assert f"{max(scores.values()):.2%}" in out
    run, events = fit(tmp_path / "runs", build_config(best, None, [], data=None, epochs=None, seed=None))
    assert (run.id, events) == (result["best"]["run"], []), "favorit train --config finds the run"
    with Image.open(tmp_path / "runs" / "rates-tuning.png") as picture:
        assert picture.width > 1000
    assert "starts" not in command(*arguments), "all trials are finished"


def test_help_names_every_space():
    from favorit.cli.tune import SPACES as IN_HELP

    assert set(IN_HELP.split(", ")) == set(SPACES)


def test_too_few_trials_have_no_importances(command, tmp_path: Path):
    (tmp_path / "rates.yaml").write_text("train.lr: choice(0.03, 0.02)\n")
    out = command(tmp_path / "rates.yaml", *SETTINGS, "--sampler", "grid", "--out", tmp_path / "runs")
    assert "too few complete trials for importances" in out


def test_front_is_printed_and_written(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "time_interleaved", count_products)
    (tmp_path / "depths.yaml").write_text("model.depth: choice(1, 3)\ntrain.lr: choice(0.02, 1e-7)\n")
    arguments = (
        tmp_path / "depths.yaml",
        *SETTINGS,
        "--sampler",
        "grid",
        "--objective",
        "accuracy,latency",
        "--out",
        tmp_path / "runs",
    )
    out = command(*arguments)
    assert "Pareto front: trials that no other trial dominates" in out
    assert "importance for latency: " in out
    result = json.loads(command(*arguments, "--json").splitlines()[-1])
    table = pandas.read_csv(tmp_path / "runs" / "depths-front.csv")
    assert list(table.columns) == [
        "trial",
        "accuracy",
        "latency",
        "latency_one",
        "latency_batch",
        "latency_images",
        "run",
        "model.depth",
        "train.lr",
    ]
    assert 1 <= len(table) < 4
    by_run = {trial["run"]: trial for trial in result["trials"]}
    for row in table.to_dict("records"):
        assert by_run[row["run"]]["values"] == [pytest.approx(row["accuracy"]), pytest.approx(row["latency"])]
    assert table["accuracy"].is_monotonic_decreasing
    assert yaml.safe_load((tmp_path / "runs" / "depths-best.yaml").read_text())["train"]["lr"] == table["train.lr"][0]


def test_search_without_complete_trials_is_an_error(command, tmp_path: Path, capsys):
    (tmp_path / "stems.yaml").write_text("model.stem: choice('patch(3)', 'patch(5)')\n")
    with pytest.raises(FavoritError, match="no trial of the study 'stems' is complete"):
        command(tmp_path / "stems.yaml", *SETTINGS, "--sampler", "grid", "--out", tmp_path / "runs")
    out = capsys.readouterr().out
    assert out.count("does not divide the image") >= 2
    assert "2 of 2 trials: 2 failed" in out
    assert not (tmp_path / "runs" / "stems-best.yaml").exists()


# The base configuration


@pytest.fixture
def parsed(command, monkeypatch) -> Any:
    """The base configuration of a command line, and its other options."""

    def parse(*arguments: object) -> tuple[RunConfig, dict[str, Any]]:
        found: list[Any] = []

        def stop(space: Any, base: RunConfig, **options: Any) -> None:
            found.append((base, options))
            raise FavoritError("stopped by the test")

        monkeypatch.setattr(favorit.tuning, "tune", stop)
        with pytest.raises(FavoritError, match="stopped by the test"):
            command(*arguments)
        return found[0]

    return parse


def test_built_in_space_has_its_own_base(parsed):
    base, options = parsed("kernels-relu")
    assert base == SPACES["kernels-relu"].base
    assert (options["objectives"], options["trials"], options["pruner"]) == (("accuracy",), None, None)


def test_options_change_the_base(parsed):
    own = SPACES["kernels-relu"].base
    base, _ = parsed(
        "kernels-relu",
        "--data",
        "mnist",
        "--epochs",
        3,
        "--seed",
        5,
        "--set",
        "data.subset=100",
        "--set",
        "model.depth=2",
    )
    assert (base.data.name, base.data.subset, base.data.augment) == ("mnist", 100, own.data.augment)
    assert (base.train.epochs, base.train.patience, base.seed) == (3, own.train.patience, 5)
    assert base.model == own.model.replace(depth=2)


def test_preset_replaces_the_model(parsed):
    base, _ = parsed("kernels-relu", "--preset", "vit-64", "--set", "model.dim=32")
    assert base.model == build_config(None, "vit-64", ["model.dim=32"], data=None, epochs=None, seed=None).model
    assert base.train == SPACES["kernels-relu"].base.train


def test_config_file_replaces_the_whole_base(parsed, tmp_path: Path):
    (tmp_path / "base.yaml").write_text("model: {dim: 32}\ntrain: {epochs: 4}\n")
    base, options = parsed(
        "kernels-relu", "--config", tmp_path / "base.yaml", "--epochs", 5, "--objective", "accuracy, latency"
    )
    assert base == build_config(tmp_path / "base.yaml", None, [], data=None, epochs=5, seed=None)
    assert options["objectives"] == ("accuracy", "latency")


# The data of the figure


def trial(number: int, state: str, *values: float) -> TrialRecord:
    return TrialRecord(number, state, values or None, {"train.lr": number}, f"run{number}", None, None)


def study(
    *trials: TrialRecord,
    importances: dict[str, dict[str, float]] | None = None,
    objectives: tuple[str, ...] = ("accuracy",),
) -> TuneResult:
    return TuneResult("mine", objectives, trials, trials[:1], easy(), importances or {}, len(trials), 0)


def test_history_has_points_by_state_and_the_running_best():
    found = history(
        study(
            trial(0, "complete", 0.5),
            trial(1, "pruned", 0.1),
            trial(2, "failed"),
            trial(3, "complete", 0.4),
            trial(4, "complete", 0.7),
        )
    )
    assert found == History([(0, 0.5), (3, 0.4), (4, 0.7)], [(1, 0.1)], [(0, 0.5), (3, 0.5), (4, 0.7)])
    assert history(study(trial(0, "failed"))) == History([], [], [])


def test_importances_are_sorted_by_the_first_objective():
    shares = {"accuracy": {"train.lr": 0.7, "model.depth": 0.3}, "latency": {"model.depth": 0.9, "train.lr": 0.1}}
    found = importances(study(trial(0, "complete", 0.5, 1.0), importances=shares, objectives=("accuracy", "latency")))
    assert found == [("train.lr", [0.7, 0.1]), ("model.depth", [0.3, 0.9])]
    assert importances(study(trial(0, "complete", 0.5))) == []


@pytest.mark.parametrize(
    "result",
    [
        study(trial(0, "complete", 0.5), trial(1, "pruned", 0.1), importances={"accuracy": {"train.lr": 1.0}}),
        study(trial(0, "failed")),
        study(
            trial(0, "complete", 0.5, 2.0),
            importances={"accuracy": {"a": 1.0}, "latency": {"a": 1.0}},
            objectives=("accuracy", "latency"),
        ),
    ],
)
def test_figure_is_drawn_for_any_result(result):
    chart = draw(result)
    drawn = marks(chart)
    points = [row for mark in drawn if mark["type"] == "point" and mark.get("opacity") for row in mark["rows"]]
    assert {(row["trial"], row["accuracy"], row["state"]) for row in points} == {
        (trial.number, trial.values[0], trial.state) for trial in result.trials if trial.values
    }
    bars = [row for mark in drawn if mark["type"] == "bar" for row in mark["rows"]]
    assert {(row["objective"], row["field"], row["importance"]) for row in bars} == {
        (objective, field, share) for objective, shares in result.importances.items() for field, share in shares.items()
    }
    texts = drawn_texts(chart)
    assert "mine" in texts
    assert ("too few trials for importances" in texts) == (not result.importances)
    assert ("best so far" in texts) == any(trial.state == "complete" for trial in result.trials)


def test_importance_is_high_for_the_learning_rate_and_low_for_an_unused_field(tmp_path: Path):
    """A learning rate of 1e-7 learns nothing; with softmax layers, no layer uses the performer."""
    fields = {"train.lr": "choice(0.02, 1e-7)", "model.performer": "choice('relu', 'elu', 'gelu')"}
    result, _ = search(tmp_path, fields, pruner="none")
    shares = result.importances["accuracy"]
    assert list(shares) == ["train.lr", "model.performer"]
    assert shares["train.lr"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    assert len({record.run for record in result.trials}) == 2, "an unused performer does not change the run"


def test_front_without_latency_is_written(tmp_path: Path):
    write_front(study(trial(3, "complete", 0.5)), tmp_path / "front.csv")
    assert pandas.read_csv(tmp_path / "front.csv").to_dict("records") == [
        {"trial": 3, "accuracy": 0.5, "run": "run3", "train.lr": 3}
    ]
