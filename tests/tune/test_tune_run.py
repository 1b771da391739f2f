"""Searches from end to end: trials are ordinary runs, and a rerun resumes. Also pruning, latency and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from optuna.trial import TrialState

import favorit.tuning
from favorit import FavoritError, measure
from favorit.training import Epoch, Event
from favorit.tuning import objective
from favorit.tuning.events import StudyStarted, TrialFinished, TrialProgress, TrialStarted
from favorit.tuning.result import write_best
from favorit.tuning.space import Space
from training_helpers import files, fit
from tune_helpers import RATES, count_products, easy, folders, search, started


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished search of a grid of three trials: folder, result, events."""
    out = tmp_path_factory.mktemp("finished")
    return out, *search(out, storage=None)


def test_trials_are_ordinary_runs(finished):
    out, result, events = finished
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert {trial.fields["train.lr"] for trial in result.trials} == {0.03, 0.02, 0.01}
    assert {trial.run for trial in result.trials} == folders(out)
    for trial in result.trials:
        run = favorit.Run(out / trial.run)
        assert run.config.train.lr == trial.fields["train.lr"]
        assert trial.values == (run.result["validation"]["accuracy"],)
        assert max(epoch["validation_accuracy"] for epoch in run.epochs) == trial.values[0]
    assert started(events) == [0, 1, 2]
    assert [event.number for event in events if isinstance(event, TrialFinished)] == [0, 1, 2]
    epochs = [event for event in events if isinstance(event, TrialProgress) and event.accuracy is not None]
    assert [(event.number, event.share) for event in epochs] == [
        (number, share) for number in range(3) for share in (0.5, 1.0)
    ]
    assert (result.missing, result.elsewhere, result.wanted) == (0, 0, 3)


def test_best_file_trains_the_same_run(finished, tmp_path: Path):
    from favorit.cli.configuration import build_config

    _, result, _ = finished
    best = max(result.trials, key=lambda trial: (trial.values, -trial.number))
    assert result.front == (best,)
    write_best(result, tmp_path / "best.yaml")
    assert f"run {best.run}" in (tmp_path / "best.yaml").read_text().splitlines()[0]
    assert yaml.safe_load((tmp_path / "best.yaml").read_text())["train"]["lr"] == best.fields["train.lr"]
    config = build_config(tmp_path / "best.yaml", None, [], data=None, epochs=None, seed=None)
    again, epochs = fit(tmp_path / "runs", config)
    assert again.id == best.run
    assert again.result["validation"]["accuracy"] == best.values[0]
    assert epochs


def test_rerun_of_a_finished_search_does_nothing(finished):
    out, result, _ = finished
    before = dict(files(out))
    again, events = search(out, storage=None)
    assert events == []
    assert again == result
    assert {name: time for name, time in files(out) if ".tune" not in name} == {
        name: time for name, time in before.items() if ".tune" not in name
    }


def test_search_with_more_trials_resumes(tmp_path: Path):
    two, _ = search(tmp_path, trials=2)
    three, events = search(tmp_path, trials=3)
    assert started(events) == [2]
    assert three.trials[:2] == two.trials
    whole, events = search(tmp_path, trials=99)
    assert (len(whole.trials), events) == (3, []), "a grid limits the number of trials"


def test_draws_of_a_resumed_search_equal_those_of_an_uninterrupted_one(tmp_path: Path):
    fields = {"train.lr": "log(1e-3, 1e-1)", "model.dropout": "uniform(0, 0.4)", "model.dim": "choice(8, 16)"}
    options = dict(fields=fields, base=easy(train=dict(epochs=1)), sampler="tpe(startup=2)")
    whole, _ = search(tmp_path / "whole", **options, trials=4)
    for trials in (1, 2, 3, 4):
        parts, events = search(tmp_path / "parts", **options, trials=trials)
        assert len(started(events)) == 1
    assert [trial.fields for trial in parts.trials] == [trial.fields for trial in whole.trials]
    assert len({trial.fields["train.lr"] for trial in whole.trials}) == 4
    other, _ = search(tmp_path / "other", **{**options, "base": easy(train=dict(epochs=1), seed=1)}, trials=1)
    assert other.trials[0].fields != whole.trials[0].fields


def test_equal_configurations_are_trained_once(tmp_path: Path, monkeypatch):
    """Three spellings of one layout: the first trial trains the run, the others copy its result."""
    trained: list[str] = []
    train = objective.train

    def count(config: Any, **options: Any) -> Any:
        trained.append(config.model.layout)
        return train(config, **options)

    monkeypatch.setattr(objective, "train", count)
    result, _ = search(
        tmp_path, {"model.layout": "choice('softmax', 'all_standard', 'softmax*2')"}, easy(model=dict(depth=2))
    )
    assert len(trained) == 1
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert len({(trial.run, trial.values) for trial in result.trials}) == 1
    assert len(folders(tmp_path)) == 1


def test_run_that_is_on_disk_is_not_trained_again(tmp_path: Path):
    run, _ = fit(tmp_path, easy(train=dict(lr=0.02)))
    before = dict(files(run.path))
    result, _ = search(tmp_path)
    assert dict(files(run.path)) == before
    (trial,) = [trial for trial in result.trials if trial.run == run.id]
    assert trial.values == (run.result["validation"]["accuracy"],)


def test_invalid_configuration_fails_its_own_trial_only(tmp_path: Path):
    fields = {
        "model.heads": "choice(2, 4)",
        "model.dim": "choice(16, 18)",
        "model.stem": "choice('patch(4)', 'patch(3)')",
    }
    result, events = search(tmp_path, fields, easy(train=dict(epochs=1)))
    failed = {
        (t.fields["model.heads"], t.fields["model.dim"], t.fields["model.stem"]): t.error
        for t in result.trials
        if t.state == "failed"
    }
    complete = [trial for trial in result.trials if trial.state == "complete"]
    assert len(result.trials) == 8
    assert len(complete) == 3 == len(folders(tmp_path))
    assert "heads=4 does not divide dim=18" in failed[4, 18, "patch(4)"]
    assert "does not divide the image" in failed[2, 16, "patch(3)"]
    assert {event.error for event in events if isinstance(event, TrialFinished) and event.state == "failed"} == set(
        failed.values()
    )
    again, events = search(tmp_path, fields, easy(train=dict(epochs=1)))
    assert (again, events) == (result, [])


def test_diverged_run_is_a_failed_trial(tmp_path: Path):
    result, _ = search(tmp_path, {"train.lr": "choice(0.01, 1e30)"}, easy(train=dict(optimizer="sgd")))
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert [trial.fields["train.lr"] for trial in failed] == [1e30]
    assert "became" in failed[0].error
    assert favorit.Run(tmp_path / failed[0].run).result["status"] == "failed"


def test_runtime_error_of_torch_is_a_failed_trial(tmp_path: Path, monkeypatch):
    def train(config: Any, **options: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory:\nyou tried 99 GiB")

    monkeypatch.setattr(objective, "train", train)
    result, _ = search(tmp_path, trials=2)
    assert [trial.error for trial in result.trials] == [
        "DefaultCPUAllocator: can't allocate memory: you tried 99 GiB"
    ] * 2
    assert (result.best, result.front) == (None, ())


def test_full_disk_stops_the_search_and_rerun_resumes(tmp_path: Path, monkeypatch):
    train = objective.train

    def full(config: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(objective, "train", full)
    with pytest.raises(OSError, match="No space left"):
        search(tmp_path)
    monkeypatch.setattr(objective, "train", train)
    result, events = search(tmp_path)
    assert [event.resumed for event in events if isinstance(event, TrialStarted)] == [True, False, False]
    assert [trial.state for trial in result.trials] == ["complete"] * 3


# Pruning


@pytest.mark.parametrize("pruner", ["median(startup=1, warmup=0)", "hyperband(factor=5)"])
def test_pruner_stops_a_bad_trial_early(tmp_path: Path, pruner):
    fields = {"train.lr": "choice(0.03, 0.02, 0.015, 0.01, 1e-7)"}
    base = easy(train=dict(epochs=4))
    result, _ = search(tmp_path, fields, base, pruner=pruner)
    states = {trial.fields["train.lr"]: trial.state for trial in result.trials}
    (lost,) = [trial for trial in result.trials if trial.fields["train.lr"] == 1e-7]
    assert lost.number > 0, "the first trial cannot be pruned"
    assert states[1e-7] == "pruned"
    assert "complete" in states.values()
    run = favorit.Run(tmp_path / lost.run)
    assert run.result["status"] == "pruned"
    assert len(run.epochs) < 4
    assert lost.values == (run.epochs[-1]["validation_accuracy"],)
    assert lost not in result.front
    assert result.best is not None
    assert search(tmp_path, fields, base, pruner=pruner) == (result, []), "a rerun does not resume it"


def test_pruner_none_stops_no_trial(tmp_path: Path):
    result, _ = search(tmp_path, {"train.lr": "choice(0.03, 0.01, 1e-7)"}, pruner="none")
    assert [trial.state for trial in result.trials] == ["complete"] * 3


def test_trial_equal_to_a_pruned_one_is_pruned(tmp_path: Path, monkeypatch):
    pruned: list[int] = []

    def train(config: Any, *, listen: Any, out: Path, **options: Any) -> Any:
        pruned.append(1)
        return favorit.train(config, out=out, accelerator="cpu", listen=lambda event, own: prune(event, own, listen))

    def prune(event: Event, config: Any, listen: Any) -> bool | None:
        listen(event, config)
        return isinstance(event, Epoch)

    monkeypatch.setattr(objective, "train", train)
    result, _ = search(tmp_path, {"model.layout": "choice('softmax', 'all_standard')"})
    assert pruned == [1]
    assert [trial.state for trial in result.trials] == ["pruned", "pruned"]
    assert result.trials[0].values == result.trials[1].values
    assert result.best is None


def test_run_pruned_by_another_search_is_resumed(tmp_path: Path):
    config = easy(train=dict(lr=0.02))
    run = favorit.train(config, out=tmp_path, accelerator="cpu", listen=lambda event, _: isinstance(event, Epoch))
    assert run.result["status"] == "pruned"
    result, events = search(tmp_path, {"train.lr": "choice(0.02)"})
    assert [trial.state for trial in result.trials] == ["complete"]
    assert [event.share for event in events if isinstance(event, TrialProgress) and event.accuracy is not None] == [
        1.0
    ], "the first epoch is on disk"


# Accuracy and latency


def test_two_objectives_give_a_pareto_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "time_interleaved", count_products)
    fields = {"model.depth": "choice(1, 6)", "train.lr": "choice(0.02, 1e-7)"}
    result, _ = search(tmp_path, fields, objectives=("accuracy", "latency"))
    assert [trial.state for trial in result.trials] == ["complete"] * 4
    for trial in result.trials:
        accuracy, latency = trial.values
        assert accuracy == favorit.Run(tmp_path / trial.run).result["validation"]["accuracy"]
        assert latency == trial.latency["one"] > 0
        assert trial.latency["batch"] == objective.BATCH * latency
        assert trial.latency["images"] == objective.BATCH
    beaten = [
        a
        for a in result.trials
        if any(
            b.values[0] >= a.values[0] and b.values[1] <= a.values[1] and b.values != a.values for b in result.trials
        )
    ]
    assert set(map(id, result.front)) == {id(trial) for trial in result.trials} - set(map(id, beaten))
    assert list(result.front) == sorted(result.front, key=lambda trial: -trial.values[0])
    deep, shallow = ([t.values[1] for t in result.trials if t.fields["model.depth"] == depth] for depth in (6, 1))
    assert deep[0] == deep[1] > shallow[0] == shallow[1], "latency depends on depth, not on the learning rate"
    assert result.best == Space("", fields, easy()).config(result.front[0].fields)


def test_latency_search_on_another_machine_is_rejected(tmp_path: Path, monkeypatch):
    options = dict(fields={"model.depth": "choice(1, 2)"}, objectives=("accuracy", "latency"))
    search(tmp_path, **options, trials=1)
    here = measure.fingerprint()
    monkeypatch.setattr(measure, "fingerprint", lambda: {**here, "processor": "another"})
    with pytest.raises(FavoritError, match="was started with another machine"):
        search(tmp_path, **options)


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(objectives=("accuracy", "latency"), pruner="median"),
            "the pruner 'median' cannot be used with two objectives",
        ),
        (dict(objectives=("latency",)), "the objective 'latency' is not valid: use accuracy, or accuracy,latency"),
        (dict(objectives=("acuracy",)), "did you mean 'accuracy'"),
        (dict(pruner="meidan"), "did you mean 'median'"),
        (dict(sampler="tpee"), "did you mean 'tpe'"),
        (dict(sampler="tpe(startup=-1)"), "at least 0"),
        (dict(trials=0), "trials=0"),
        (dict(workers=0), "workers=0"),
        (dict(name="a/b"), "the study's name 'a/b' is not valid"),
        (dict(storage="mysql://me:secret@host/db"), r"the storage 'mysql://me:\*\*\*@host/db' is not valid"),
        (dict(base=easy(data=dict(validation=0), train=dict(select="last"))), "no images to compare trials on"),
        (dict(base=easy(data=dict(name="cifar11"))), "did you mean 'cifar10'"),
        (dict(fields={"train.lr": "log(1e-3, 1e-1)"}), "the sampler grid needs"),
        (dict(fields={"train.lrr": "choice(1)"}), "did you mean 'train.lr'"),
    ],
)
def test_invalid_options_are_one_line_before_anything_starts(tmp_path: Path, options, message):
    with pytest.raises(FavoritError, match=message) as error:
        search(tmp_path / "out", **options)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
    assert not list((tmp_path / "out").glob("*/config.json"))
    assert not (tmp_path / "out" / "tune.db").exists()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (dict(fields={"train.lr": "choice(0.03, 0.02)"}), "search space"),
        (dict(base=easy(train=dict(epochs=3))), "configuration"),
        (dict(sampler="random"), "sampler"),
        (dict(pruner="none"), "pruner"),
    ],
)
def test_resuming_with_another_plan_is_rejected(finished, options, part):
    out, _, _ = finished
    with pytest.raises(FavoritError, match=f"was started with another {part}"):
        search(out, storage=None, **options)


def test_study_of_another_program_is_rejected(tmp_path: Path):
    import optuna

    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "tune.log"))
    study = optuna.create_study(
        study_name="tuning", storage=optuna.storages.JournalStorage(backend), direction="maximize"
    )
    study.add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(FavoritError, match="was not created by favorit"):
        search(tmp_path)


def test_first_event_counts_the_finished_trials(tmp_path: Path):
    events: list[Any] = []
    search(tmp_path, trials=2)
    search(tmp_path, listen=events.append)
    assert events[0] == StudyStarted(3, 2)


def test_searches_with_different_names_share_a_folder(finished, tmp_path: Path):
    out, result, _ = finished
    other, _ = search(out, {"train.lr": "choice(0.03)"}, name="other", storage=None)
    assert (other.name, len(other.trials)) == ("other", 1)
    assert other.trials[0].run in {trial.run for trial in result.trials}


def test_storage_can_be_read_with_optuna(finished):
    import optuna

    out, result, _ = finished
    storage = optuna.storages.RDBStorage(f"sqlite:///{out / 'tune.db'}")
    study = optuna.load_study(study_name="tuning", storage=storage)
    assert study.best_value == result.front[0].values[0]
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 3
    assert [trial.user_attrs["run"] for trial in study.trials] == [trial.run for trial in result.trials]
    assert [sorted(trial.intermediate_values) for trial in study.trials] == [[1, 2]] * 3
    storage.engine.dispose()


def test_tune_accepts_a_file_or_fields(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("train.lr: choice(0.02)\n")
    found = favorit.tuning.tune(
        tmp_path / "mine.yaml", easy().model_dump(), out=tmp_path, sampler="grid", accelerator="cpu"
    )
    assert (found.name, found.best) == ("mine", easy(train=dict(lr=0.02)))
    same = favorit.tuning.tune(
        RATES | {"train.lr": "choice(0.02)"}, easy(), out=tmp_path, accelerator="cpu", trials=1, sampler="random"
    )
    assert (same.name, same.trials[0].run) == ("tuning", found.trials[0].run)
