"""`train.watch="test"` records test curves without changing training; summary of the epochs in a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from favorit import FavoritError, RunConfig
from favorit.training.outcome import outcome, reached
from training_helpers import LIVELY, Outcome, fit, tiny

WATCHED = ("test_loss", "test_accuracy", "test_seconds")
FIXED: dict[str, Any] = dict(data=dict(validation=0), train=dict(epochs=3, select="last"))


def lively(**train: Any) -> RunConfig:
    return tiny(**{**LIVELY, "train": {**LIVELY["train"], **train}})


def test_watched_run_records_test_curve_of_every_epoch(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(**{**FIXED, "train": {**FIXED["train"], "watch": "test"}}))
    assert [record["validation_accuracy"] for record in run.epochs] == [None] * 3
    assert all(record[field] is not None for record in run.epochs for field in WATCHED)
    assert run.epochs[-1]["test_accuracy"] == run.result["test"]["accuracy"], "the last epoch is what is tested"
    assert run.epochs[-1]["test_loss"] == pytest.approx(run.result["test"]["loss"], rel=1e-6)
    assert "watched" in run.result["flags"]


def test_run_that_is_not_watched_has_no_test_curve(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(**FIXED))
    assert all(record[field] is None for record in run.epochs for field in WATCHED)
    assert run.result["best_test"] is None
    assert "watched" not in run.result["flags"]


def test_watching_changes_no_weight_and_no_selection(tmp_path: Path):
    plain, _ = fit(tmp_path, lively())
    watched, _ = fit(tmp_path, lively(watch="test"))
    assert plain.id != watched.id
    one, other = Outcome.of(plain), Outcome.of(watched)
    assert one.result == other.result
    assert one.tensors.keys() == other.tensors.keys()
    assert all((one.tensors[name] == other.tensors[name]).all() for name in one.tensors)
    for before, after in zip(one.epochs, other.epochs, strict=True):
        assert {name: value for name, value in after.items() if name not in WATCHED} == {
            name: value for name, value in before.items() if name not in WATCHED
        }


def test_watch_value_other_than_test_is_rejected():
    with pytest.raises(FavoritError, match="watch='validation' is not valid"):
        tiny(train=dict(watch="validation"))


def test_augmented_test_also_reports_the_plain_test(tmp_path: Path):
    data = dict(augment="crop(3)|flip", augment_test=True)
    augmented, _ = fit(tmp_path, tiny(data=data, train=dict(epochs=1)))
    plain, _ = fit(tmp_path, tiny(data=dict(augment="crop(3)|flip"), train=dict(epochs=1)))
    assert augmented.result["plain_test"]["accuracy"] == plain.result["test"]["accuracy"]
    assert augmented.result["plain_test"]["loss"] == pytest.approx(plain.result["test"]["loss"], rel=1e-6)
    assert augmented.result["test"]["loss"] != plain.result["test"]["loss"]
    assert "plain_test" not in plain.result


def test_inference_is_timed_at_the_batch_size_of_the_config(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(train=dict(epochs=1, test_batch_size=7)))
    assert run.result["inference_batch"] == 7
    mean, deviation = run.result["inference_seconds_per_batch"]
    assert mean > 0
    assert deviation is not None, "48 images make six whole batches of 7"


def test_result_summarizes_its_epochs(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(train=dict(epochs=3, watch="test")))
    epochs, result = run.epochs, run.result
    assert result["train_accuracy"] == epochs[-1]["train_accuracy"]
    assert result["train_loss"] == epochs[-1]["train_loss"]
    assert result["steps"] == 3 * 6, "86 training images in batches of 16"
    assert result["train_seconds"] == sum(record["train_seconds"] for record in epochs)
    timed = ("train_seconds", "validation_seconds", "test_seconds")
    assert result["total_seconds"] == pytest.approx(sum(record[name] for record in epochs for name in timed))
    assert result["best_validation_loss"]["value"] == min(record["validation_loss"] for record in epochs)
    assert result["best_test"]["accuracy"] == max(record["test_accuracy"] for record in epochs)
    assert isinstance(result["environment"]["nice"], int)


def record(epoch: int, test: float | None, validation: float | None, train: float = 0.5) -> dict[str, Any]:
    return dict(
        epoch=epoch,
        train_loss=1.0,
        train_accuracy=train,
        train_seconds=10.0,
        validation_loss=None if validation is None else 1 - validation,
        validation_accuracy=validation,
        validation_seconds=1.0,
        test_loss=None if test is None else 2 - test,
        test_accuracy=test,
        test_seconds=None if test is None else 2.0,
    )


def test_best_epoch_is_the_first_of_equal_ones():
    found = outcome([record(0, 0.2, 0.3), record(1, 0.6, 0.5), record(2, 0.6, 0.5), record(3, 0.4, 0.1)])
    assert found["best_test"] == {"accuracy": 0.6, "loss": 1.4, "epoch": 1}
    assert found["best_validation_loss"] == {"value": 0.5, "epoch": 1}
    assert (found["epochs"], found["train_seconds"], found["total_seconds"]) == (4, 40.0, 52.0)


def test_reached_has_the_first_epoch_and_its_training_seconds():
    epochs = [record(0, 0.2, 0.9), record(1, 0.6, 0.9), record(2, 0.4, 0.9), record(3, 0.7, 0.9)]
    assert reached(epochs, [0.2, 0.5, 0.7, 0.8]) == {
        "curve": "test",
        "accuracies": {
            "0.2": {"epoch": 0, "seconds": 10.0},
            "0.5": {"epoch": 1, "seconds": 20.0},
            "0.7": {"epoch": 3, "seconds": 40.0},
        },
    }


@pytest.mark.parametrize(
    ("test", "validation", "curve"), [(0.4, 0.5, "test"), (None, 0.5, "validation"), (None, None, "train")]
)
def test_reached_prefers_test_then_validation_then_train(test, validation, curve):
    assert reached([record(0, test, validation, train=0.3)])["curve"] == curve


def test_epochs_of_an_older_version_have_no_test_fields():
    old = {name: value for name, value in record(0, None, 0.5).items() if not name.startswith("test")}
    found = outcome([old])
    assert found["best_test"] is None
    assert found["total_seconds"] == 11.0
