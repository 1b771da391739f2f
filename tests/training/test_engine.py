"""The training loop on tiny data: events, early stopping, selection of weights, and failures."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import favorit
from favorit import FavoritError, create_model
from favorit.training import Begin, Checkpoint, End, Epoch, Step
from favorit.training.diagnosis import DivergedError, diagnose
from favorit.training.evaluation import Evaluation, report
from favorit.training.folder import RunFolder
from training_helpers import build_training, files, fit, tiny, untimed, weights

STEPS = 6  # steps in an epoch: 86 images in batches of 16


def only(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_training_reduces_the_loss_and_learns_the_classes(tmp_path: Path):
    run, events = fit(
        tmp_path, tiny(data=dict(name="synthetic(size=8, classes=3, train=480, test=60)"), train=dict(epochs=6))
    )
    losses = [epoch.train_loss for epoch in only(Epoch, events)]
    assert losses[-1] < losses[0] / 2
    assert run.result["test"]["accuracy"] > 0.6
    assert run.result["status"] == "complete"


def test_events_have_the_documented_order_and_number(tmp_path: Path):
    run, events = fit(tmp_path, tiny())
    assert [type(event) for event in events] == [Begin, *[*[Step] * STEPS, Epoch] * 2, End]
    assert events[0] == Begin(str(run.path), 0)
    steps = only(Step, events)
    assert [(step.epoch, step.step, step.steps) for step in steps] == [
        (e, s, STEPS) for e in range(2) for s in range(1, STEPS + 1)
    ]
    epochs = only(Epoch, events)
    assert [epoch.epoch for epoch in epochs] == [0, 1]
    assert [(steps[-1].loss, steps[-1].accuracy)] == [(epochs[-1].train_loss, epochs[-1].train_accuracy)]
    assert events[-1].result == {key: value for key, value in run.result.items() if key != "schema"}
    assert run.epochs == [json.loads(json.dumps(vars(epoch))) for epoch in epochs]


def test_zero_seconds_between_checkpoints_saves_every_step(tmp_path: Path):
    folders: list[tuple[int, list[str]]] = []

    def listen(event: Any, config: Any) -> None:
        if isinstance(event, Checkpoint):
            (run,) = tmp_path.iterdir()
            folders.append((event.step, [path.name for path in run.glob("*-*") if path.is_dir()]))

    favorit.train(tiny(), out=tmp_path, listen=listen, checkpoint_seconds=0)
    middle = [*range(1, STEPS), *range(STEPS + 1, 2 * STEPS)]  # the checkpoint after an epoch has no event
    assert folders == [(step, [f"checkpoint-{step}"]) for step in middle]


def test_complete_run_keeps_only_the_documented_files(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(), checkpoint_seconds=0)
    names = {"config.json", "lock", "epochs.jsonl", "best.safetensors", "predictions.npz", "result.json"}
    assert {path.name for path in run.path.iterdir()} == names
    ema, _ = fit(tmp_path, tiny(train=dict(ema=0.5)), checkpoint_seconds=0)
    assert {path.name for path in ema.path.iterdir()} == names | {"best-ema.safetensors"}


def test_result_has_metrics_times_memory_and_size(tmp_path: Path):
    run, _ = fit(tmp_path, tiny())
    result = run.result
    assert result["epochs"] == 2
    assert result["parameters"] == sum(value.numel() for value in weights(run).values())
    assert result["flops"] > 0
    assert result["peak_memory"] > 2**20
    assert result["train_seconds_per_epoch"] == pytest.approx(sum(epoch["train_seconds"] for epoch in run.epochs) / 2)
    mean, spread = result["inference_seconds_per_batch"]
    assert mean == result["inference_seconds"]  # 48 images are one batch
    assert spread is None
    assert result["inference_batch"] == 48
    assert result["images_per_second"] == pytest.approx(48 / result["inference_seconds"])
    assert result["environment"]["processes"] == 1
    assert result["environment"]["threads"] == torch.get_num_threads()


def test_partial_last_batch_is_not_timed(tmp_path: Path):
    """Five images in batches of two: the last batch has one image and is not timed."""
    model, images = create_model(tiny().model), torch.zeros(1, 3, 32, 32)
    found = report(
        model, Evaluation(torch.zeros(5, 10), torch.zeros(5, dtype=torch.int64), [1.0, 3.0, 0.5], [2, 2, 1]), images
    )
    assert (found["inference_batch"], found["inference_seconds_per_batch"]) == (2, [2.0, 1.0])
    assert found["inference_seconds"] == 4.5
    assert found["images_per_second"] == pytest.approx(5 / 4.5)


def test_same_configuration_is_bit_equal_and_another_seed_differs(tmp_path: Path):
    one, other = fit(tmp_path / "a", tiny())[0], fit(tmp_path / "b", tiny())[0]
    assert untimed(one) == untimed(other)
    assert untimed(fit(tmp_path / "a", tiny(seed=1))[0]) != untimed(one)


def test_training_does_not_depend_on_the_global_generator(tmp_path: Path):
    config = tiny(model=dict(dropout=0.2))
    torch.manual_seed(1)
    one = fit(tmp_path / "a", config)[0]
    torch.manual_seed(2)
    assert untimed(fit(tmp_path / "b", config)[0]) == untimed(one)


def test_finished_run_is_returned_without_training(tmp_path: Path):
    run, _ = fit(tmp_path, tiny())
    before = list(files(tmp_path))
    again, events = fit(tmp_path, tiny())
    assert events == []
    assert again == run
    assert list(files(tmp_path)) == before


def test_run_finished_by_another_process_during_startup_is_not_repeated(tmp_path: Path, monkeypatch):
    """Building the model takes seconds between the first check of the folder and the lock."""
    from favorit.training import run as module

    launch = module._launch

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(module, "_launch", launch)
        other, _ = fit(tmp_path, tiny())
        (other.path / "checkpoint-12").mkdir()  # as after a kill before `tidy`
        return launch(*arguments)

    monkeypatch.setattr(module, "_launch", slow)
    run, events = fit(tmp_path, tiny())
    assert events == []
    assert len(run.epochs) == 2
    assert not (run.path / "checkpoint-12").exists()


# Early stopping and selection. With 10 validation images the accuracy soon repeats, and a large learning rate makes the
# loss rise.
RESTLESS: dict[str, Any] = dict(epochs=10, lr=0.03, schedule="constant")


def score(record: dict[str, Any], monitor: str) -> float:
    return record["validation_accuracy"] if monitor == "accuracy" else -record["validation_loss"]


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize("monitor", ["accuracy", "loss"])
def test_patience_stops_after_that_many_epochs_without_improvement(tmp_path: Path, monitor, patience):
    whole, _ = fit(tmp_path, tiny(train=dict(**RESTLESS, monitor=monitor)))
    best, waited, expected = -math.inf, 0, 0
    for record in whole.epochs:
        expected += 1
        waited = 0 if score(record, monitor) > best else waited + 1
        best = max(best, score(record, monitor))
        if waited == patience:
            break
    assert expected < 10, "invalid test case: patience never runs out"
    run, events = fit(tmp_path, tiny(train=dict(**RESTLESS, monitor=monitor, patience=patience)))
    assert untimed(run) == untimed(whole)[:expected]
    assert len(only(Epoch, events)) == run.result["epochs"] == expected
    assert run.result["chosen_epoch"] == expected - 1 - patience


@pytest.mark.parametrize("monitor", ["accuracy", "loss"])
def test_best_epoch_is_tested(tmp_path: Path, monitor):
    training = build_training(tmp_path, tiny(train=dict(**RESTLESS, monitor=monitor)))
    states = []
    for event in training.events():
        if isinstance(event, Epoch):
            states.append({name: value.clone() for name, value in training.model.state_dict().items()})
    records = training.folder.epochs()
    scores = [score(record, monitor) for record in records]
    best = scores.index(max(scores))  # the first of equal scores
    assert 0 < best < 9, "invalid test case: the first or last epoch is best"
    running = [max(scores[: number + 1]) for number in range(10)]
    assert [record["best"] for record in records] == [
        number == 0 or running[number] > running[number - 1] for number in range(10)
    ]
    saved = load_file(training.folder.path / "best.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in states[best].items())
    result = training.folder.result()
    assert result is not None
    assert result["chosen_epoch"] == best
    assert result["validation"] == {
        "loss": records[best]["validation_loss"],
        "accuracy": records[best]["validation_accuracy"],
    }


def test_select_last_tests_the_last_epoch(tmp_path: Path):
    best, last = (fit(tmp_path, tiny(train=dict(**RESTLESS, select=select)))[0] for select in ("best", "last"))
    assert best.result["chosen_epoch"] < 9
    assert last.result["chosen_epoch"] == 9
    strip = [{key: value for key, value in record.items() if key != "best"} for record in untimed(last)]
    assert strip == [{key: value for key, value in record.items() if key != "best"} for record in untimed(best)]
    assert any(not torch.equal(value, weights(best)[name]) for name, value in weights(last).items())


def test_select_last_with_patience_still_stops(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(train=dict(**RESTLESS, select="last", patience=1)))
    assert run.result["epochs"] < 10
    assert run.result["chosen_epoch"] == run.result["epochs"] - 1


def test_without_validation_all_images_train(tmp_path: Path):
    config = tiny(data=dict(validation=0), train=dict(select="last", batch_size=32))
    run, events = fit(tmp_path, config)
    assert {step.steps for step in only(Step, events)} == {3}
    assert {(epoch.validation_loss, epoch.validation_accuracy) for epoch in only(Epoch, events)} == {(None, None)}
    assert run.result["validation"] == {"loss": None, "accuracy": None}
    assert run.result["chosen_epoch"] == 1


@pytest.mark.parametrize("train", [dict(), dict(select="last", patience=1)])
def test_selection_without_validation_images_is_rejected(train):
    with pytest.raises(FavoritError, match=r"data\.validation=0 leaves no images to select an epoch with"):
        tiny(data=dict(validation=0), train=train)


def test_folds_are_disjoint_and_cover_all_images(tmp_path: Path):
    configs = [tiny(data=dict(folds=3, fold=fold)) for fold in range(3)]
    parts = []
    for config in configs:
        training = build_training(tmp_path / str(config.data.fold), config)
        assert training.validation is not None
        train, validation = set(training.loader.indices.tolist()), set(training.validation.indices.tolist())
        assert train.isdisjoint(validation)
        assert train | validation == set(range(96))
        parts.append(validation)
    assert [len(part) for part in parts] == [32, 32, 32]
    assert set().union(*parts) == set(range(96))
    runs = [fit(tmp_path, config)[0] for config in configs]
    assert len({run.id for run in runs}) == 3
    assert len({json.dumps(untimed(run)) for run in runs}) == 3


def test_subset_trains_on_that_many_images(tmp_path: Path):
    training = build_training(tmp_path, tiny(data=dict(subset=40, validation=10)))
    assert training.validation is not None
    assert (len(training.loader.indices), len(training.validation.indices)) == (30, 10)


def test_drop_last_drops_the_partial_batch(tmp_path: Path):
    _, events = fit(tmp_path, tiny(train=dict(drop_last=True)))
    assert {step.steps for step in only(Step, events)} == {5}


def test_only_training_images_are_augmented(tmp_path: Path):
    training = build_training(tmp_path, tiny(data=dict(augment="crop(2)|flip")))
    assert training.validation is not None
    assert training.loader.augment is not None
    assert training.validation.augment is None
    assert training.test.augment is None


def test_listener_returning_true_after_an_epoch_prunes_and_rerun_resumes(tmp_path: Path):
    events: list[Any] = []

    def listen(event: Any, config: Any) -> bool:
        events.append(event)
        return isinstance(event, Epoch) and event.epoch == 1

    config = tiny(train=dict(epochs=5))
    run = favorit.train(config, out=tmp_path / "pruned", listen=listen)
    assert [event.epoch for event in only(Epoch, events)] == [0, 1]
    assert isinstance(events[-1], End)
    assert (run.result["status"], run.result["epochs"]) == ("pruned", 2)
    assert "test" not in run.result
    assert favorit.runs(tmp_path / "pruned").status.tolist() == ["pruned"]
    again, whole = favorit.train(config, out=tmp_path / "pruned"), favorit.train(config, out=tmp_path / "whole")
    assert again.result["status"] == "complete"
    assert untimed(again) == untimed(whole)
    assert again.result["test"] == whole.result["test"]


def test_stop_request_after_the_last_epoch_changes_nothing(tmp_path: Path):
    run = favorit.train(tiny(), out=tmp_path, listen=lambda event, _: isinstance(event, Epoch) and event.epoch == 1)
    assert run.result["status"] == "complete"


def test_listener_returning_true_after_a_step_changes_nothing(tmp_path: Path):
    run = favorit.train(tiny(), out=tmp_path, listen=lambda event, _: isinstance(event, Step))
    assert run.result["epochs"] == 2


def test_mixture_parameters_are_logged_for_each_layer_and_epoch(tmp_path: Path):
    run, events = fit(tmp_path, tiny(model=dict(layout="mixture"), train=dict(select="last", lr=0.05)))
    logged = [epoch.scalars for epoch in only(Epoch, events)]
    for scalars in logged:
        assert set(scalars) == {f"blocks.{layer}.{name}" for layer in (0, 1) for name in ("a", "t", "eps")}
        assert all(0 < scalars[f"blocks.{layer}.a"] < 1 for layer in (0, 1))
    assert [record["scalars"] for record in run.epochs] == logged
    for layer in (0, 1):
        (raw,) = (
            value
            for name, value in weights(run).items()
            if name.startswith(f"blocks.{layer}.") and name.endswith("raw_a")
        )
        assert logged[1][f"blocks.{layer}.a"] == torch.sigmoid(raw).item()
        assert logged[0][f"blocks.{layer}.a"] != logged[1][f"blocks.{layer}.a"] != 0.5


def test_bf16_trains_in_bf16(tmp_path: Path):
    full, _ = fit(tmp_path, tiny())
    half, _ = fit(tmp_path, tiny(train=dict(precision="bf16")))
    assert half.id != full.id
    difference = max(abs(a["train_loss"] - b["train_loss"]) for a, b in zip(untimed(half), untimed(full), strict=True))
    assert 0 < difference < 0.05
    assert all(value.dtype == torch.float32 for value in weights(half).values())
    assert math.isfinite(half.result["test"]["loss"])
    assert any("in fp32: " in path for path in half.result["paths"]), "paths are recorded under autocast"
    assert not any("in fp32: " in path for path in full.result["paths"])


@pytest.mark.parametrize("precision", [32, "32"])
def test_precision_is_accepted_as_a_number(precision):
    assert tiny(train=dict(precision=precision)).train.precision == "32"


def test_compiled_run_equals_eager_run(tmp_path: Path, monkeypatch):
    """torch.compile is replaced by a stub because it is slow; the test covers what is compiled and its weights."""
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled.append(model) or model)
    one, other = fit(tmp_path / "a", tiny())[0], fit(tmp_path / "b", tiny(), compiled=True)[0]
    assert [type(model) for model in compiled] == [favorit.ViT]
    assert untimed(one) == untimed(other)


# Failures.


def test_nan_loss_stops_the_run_as_failed(tmp_path: Path):
    config = tiny(train=dict(lr=1e30, schedule="constant"))
    with pytest.raises(DivergedError) as error:
        fit(tmp_path, config)
    message = str(error.value)
    assert "the loss became nan at epoch 1, step 2 of 6" in message
    assert message.count("\n") == 0
    assert "root mean squares: stem" in message
    for advice in ("train.lr", "train.clip", "train.warmup", "model.qk_norm", "train.precision"):
        assert advice in message
    (folder,) = (RunFolder(path) for path in tmp_path.iterdir())
    result = folder.result()
    assert result is not None
    assert (result["status"], result["error"]) == ("failed", message)
    with pytest.raises(FavoritError, match=r"failed before: the loss became nan at epoch 1.*delete the folder"):
        fit(tmp_path, config)


def test_nan_weights_after_the_last_step_fail_the_run(tmp_path: Path):
    """With a single step, no later training loss can show the NaN."""
    config = tiny(train=dict(lr=1e30, schedule="constant", epochs=1, batch_size=96))
    with pytest.raises(DivergedError, match="the validation loss became nan at epoch 1, step 1 of 1"):
        fit(tmp_path, config)
    (folder,) = (RunFolder(path) for path in tmp_path.iterdir())
    result = folder.result()
    assert result is not None
    assert result["status"] == "failed"


def test_without_validation_nan_test_logits_fail_the_run(tmp_path: Path):
    config = tiny(
        data=dict(validation=0), train=dict(lr=1e30, schedule="constant", epochs=1, batch_size=120, select="last")
    )
    with pytest.raises(
        DivergedError, match="test logits are not finite at epoch 1, step 1 of 1; first layer with a non-finite output"
    ):
        fit(tmp_path, config)
    (folder,) = (RunFolder(path) for path in tmp_path.iterdir())
    assert (folder.result() or {})["status"] == "failed"


def test_diagnosis_names_the_first_non_finite_layer(tmp_path: Path):
    """The output overflows in the second block, with finite weights: earlier outputs are finite, later ones are not."""
    model = favorit.create_model(tiny().model, seed=0)
    layer = dict(model.named_modules())["blocks.1.feed_forward.branch.0"]
    images = torch.randn(2, model.config.channels, *model.config.image_size)
    with torch.no_grad():
        layer.weight.fill_(3e38)
    found = diagnose(model, images, nullcontext)
    assert "first layer with a non-finite output: blocks.1.feed_forward.branch.0;" in found
    sizes = dict(part.split(" ") for part in found.partition("squares: ")[2].split(", "))
    assert [name for name, size in sizes.items() if math.isfinite(float(size))] == ["stem", "blocks.0"]
    assert list(sizes) == ["stem", "blocks.0", "blocks.1", "head"]
    assert diagnose(favorit.create_model(tiny().model, seed=0), images, nullcontext).startswith(
        "all layer outputs are finite"
    )
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training


def test_invalid_configuration_leaves_no_folder(tmp_path: Path):
    with pytest.raises(FavoritError, match="subset"):
        fit(tmp_path, tiny(data=dict(subset=10**6)))
    assert list(tmp_path.iterdir()) == []


def test_run_resumes_after_an_exception_in_the_listener(tmp_path: Path):
    def listen(event: Any, config: Any) -> None:
        if isinstance(event, Epoch):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(tiny(), out=tmp_path, listen=listen)
    run, events = fit(tmp_path, tiny())
    assert [epoch.epoch for epoch in only(Epoch, events)] == [1]
    assert untimed(run) == untimed(fit(tmp_path / "other", tiny())[0])


@pytest.mark.parametrize(("accelerator", "devices"), [("cuda", 1), ("gpu9", 1), ("cpu", 0), ("cpu", -2)])
def test_missing_device_is_a_readable_error(tmp_path: Path, accelerator, devices):
    if accelerator == "cuda":
        assert not torch.cuda.is_available(), "this test is for machines without CUDA"
    with pytest.raises(FavoritError, match=f"{accelerator}|devices") as error:
        favorit.train(tiny(), out=tmp_path, accelerator=accelerator, devices=devices)
    assert str(error.value).count("\n") == 0


def test_batch_size_not_divisible_by_processes_is_rejected(tmp_path: Path, monkeypatch):
    """Every process raises the error itself, before it waits for another process."""
    from favorit.training import run as module

    class Two:
        global_rank, world_size, is_global_zero = 1, 2, False

        def broadcast(self, value: Any) -> Any:
            return value

    monkeypatch.setattr(module, "_launch", lambda *arguments: Two())
    with pytest.raises(FavoritError, match="batch_size=15 cannot be shared equally between 2 processes"):
        favorit.train(tiny(train=dict(batch_size=15)), out=tmp_path, devices=2)
    assert list(tmp_path.iterdir()) == []
