"""The loop on tiny data: what it yields, where it stops, what it chooses, and how it fails."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import favorit
from favorit import FavoritError, create_model
from favorit.training import Begin, Checkpoint, End, Epoch, Step
from favorit.training.diagnosis import diagnose
from favorit.training.engine import DivergedError
from favorit.training.evaluation import Evaluation, report
from favorit.training.folder import RunFolder
from training_helpers import files, fit, held, tiny, untimed, weights

STEPS = 6  # of an epoch: 86 images in batches of 16


def of(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_the_loss_falls_and_the_classes_are_learned(tmp_path: Path):
    run, events = fit(
        tmp_path, tiny(data=dict(name="synthetic(size=8, classes=3, train=480, test=60)"), train=dict(epochs=6))
    )
    losses = [epoch.train_loss for epoch in of(Epoch, events)]
    assert losses[-1] < losses[0] / 2
    assert run.result["test"]["accuracy"] > 0.6
    assert run.result["status"] == "complete"


def test_the_order_and_number_of_events(tmp_path: Path):
    run, events = fit(tmp_path, tiny())
    assert [type(event) for event in events] == [Begin, *[*[Step] * STEPS, Epoch] * 2, End]
    assert events[0] == Begin(str(run.path), 0)
    steps = of(Step, events)
    assert [(step.epoch, step.step, step.steps) for step in steps] == [
        (e, s, STEPS) for e in range(2) for s in range(1, STEPS + 1)
    ]
    epochs = of(Epoch, events)
    assert [epoch.epoch for epoch in epochs] == [0, 1]
    assert [(steps[-1].loss, steps[-1].accuracy)] == [(epochs[-1].train_loss, epochs[-1].train_accuracy)]
    assert events[-1].result == {key: value for key, value in run.result.items() if key != "schema"}
    assert run.epochs == [json.loads(json.dumps(vars(epoch))) for epoch in epochs]


def test_zero_seconds_between_checkpoints_saves_each_step(tmp_path: Path):
    folders: list[tuple[int, list[str]]] = []

    def listen(event: Any, config: Any) -> None:
        if isinstance(event, Checkpoint):
            (run,) = tmp_path.iterdir()
            folders.append((event.step, [path.name for path in run.glob("*-*") if path.is_dir()]))

    favorit.train(tiny(), out=tmp_path, listen=listen, checkpoint_seconds=0)
    middle = [*range(1, STEPS), *range(STEPS + 1, 2 * STEPS)]  # the end of an epoch has its own
    assert folders == [(step, [f"checkpoint-{step}"]) for step in middle]


def test_a_complete_run_keeps_what_it_needs_and_no_more(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(), checkpoint_seconds=0)
    names = {"config.json", "lock", "epochs.jsonl", "best.safetensors", "predictions.npz", "result.json"}
    assert {path.name for path in run.path.iterdir()} == names
    ema, _ = fit(tmp_path, tiny(train=dict(ema=0.5)), checkpoint_seconds=0)
    assert {path.name for path in ema.path.iterdir()} == names | {"best-ema.safetensors"}


def test_the_result_says_all_that_evaluation_promises(tmp_path: Path):
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


def test_batches_that_are_whole_are_timed(tmp_path: Path):
    """Of five images in batches of two the last is half a one, and is not counted."""
    model, images = create_model(tiny().model), torch.zeros(1, 3, 32, 32)
    found = report(
        model, Evaluation(torch.zeros(5, 10), torch.zeros(5, dtype=torch.int64), [1.0, 3.0, 0.5], [2, 2, 1]), images
    )
    assert (found["inference_batch"], found["inference_seconds_per_batch"]) == (2, [2.0, 1.0])
    assert found["inference_seconds"] == 4.5
    assert found["images_per_second"] == pytest.approx(5 / 4.5)


def test_the_same_configuration_twice_is_bit_equal_and_another_seed_is_not(tmp_path: Path):
    one, other = fit(tmp_path / "a", tiny())[0], fit(tmp_path / "b", tiny())[0]
    assert untimed(one) == untimed(other)
    assert untimed(fit(tmp_path / "a", tiny(seed=1))[0]) != untimed(one)


def test_training_does_not_depend_on_the_global_generator(tmp_path: Path):
    config = tiny(model=dict(dropout=0.2))
    torch.manual_seed(1)
    one = fit(tmp_path / "a", config)[0]
    torch.manual_seed(2)
    assert untimed(fit(tmp_path / "b", config)[0]) == untimed(one)


def test_a_finished_run_is_returned_without_training(tmp_path: Path):
    run, _ = fit(tmp_path, tiny())
    before = list(files(tmp_path))
    again, events = fit(tmp_path, tiny())
    assert events == []
    assert again == run
    assert list(files(tmp_path)) == before


def test_a_run_that_another_process_finished_in_the_meantime_is_not_repeated(tmp_path: Path, monkeypatch):
    """Between the first look at the folder and the lock there are seconds: models are built and libraries imported."""
    from favorit.training import run as module

    launch = module._launch

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(module, "_launch", launch)
        other, _ = fit(tmp_path, tiny())
        (other.path / "checkpoint-12").mkdir()  # it was killed before it had tidied
        return launch(*arguments)

    monkeypatch.setattr(module, "_launch", slow)
    run, events = fit(tmp_path, tiny())
    assert events == []
    assert len(run.epochs) == 2
    assert not (run.path / "checkpoint-12").exists()


# Early stopping and selection. Validation has 10 images, so that its accuracy soon repeats itself, and a large rate
# makes its loss rise.
RESTLESS: dict[str, Any] = dict(epochs=10, lr=0.03, schedule="constant")


def score(record: dict[str, Any], monitor: str) -> float:
    return record["validation_accuracy"] if monitor == "accuracy" else -record["validation_loss"]


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize("monitor", ["accuracy", "loss"])
def test_patience_stops_where_it_must(tmp_path: Path, monitor, patience):
    whole, _ = fit(tmp_path, tiny(train=dict(**RESTLESS, monitor=monitor)))
    best, waited, expected = -math.inf, 0, 0
    for record in whole.epochs:
        expected += 1
        waited = 0 if score(record, monitor) > best else waited + 1
        best = max(best, score(record, monitor))
        if waited == patience:
            break
    assert expected < 10, "the case is no case: patience never runs out"
    run, events = fit(tmp_path, tiny(train=dict(**RESTLESS, monitor=monitor, patience=patience)))
    assert untimed(run) == untimed(whole)[:expected]
    assert len(of(Epoch, events)) == run.result["epochs"] == expected
    assert run.result["chosen_epoch"] == expected - 1 - patience


@pytest.mark.parametrize("monitor", ["accuracy", "loss"])
def test_the_best_epoch_is_tested(tmp_path: Path, monitor):
    training = held(tmp_path, tiny(train=dict(**RESTLESS, monitor=monitor)))
    states = []
    for event in training.events():
        if isinstance(event, Epoch):
            states.append({name: value.clone() for name, value in training.model.state_dict().items()})
    records = training.folder.epochs()
    scores = [score(record, monitor) for record in records]
    best = scores.index(max(scores))  # the first of equals
    assert 0 < best < 9, "the case is no case: an end is best"
    running = [max(scores[: number + 1]) for number in range(10)]
    assert [record["best"] for record in records] == [
        number == 0 or running[number] > running[number - 1] for number in range(10)
    ]
    saved = favorit.training.checkpoint.load_file(training.folder.path / "best.safetensors")
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


def test_without_a_validation_part_all_images_train(tmp_path: Path):
    config = tiny(data=dict(validation=0), train=dict(select="last", batch_size=32))
    run, events = fit(tmp_path, config)
    assert {step.steps for step in of(Step, events)} == {3}
    assert {(epoch.validation_loss, epoch.validation_accuracy) for epoch in of(Epoch, events)} == {(None, None)}
    assert run.result["validation"] == {"loss": None, "accuracy": None}
    assert run.result["chosen_epoch"] == 1


@pytest.mark.parametrize("train", [dict(), dict(select="last", patience=1)])
def test_nothing_to_choose_by_is_an_error(train):
    with pytest.raises(FavoritError, match=r"data\.validation=0 leaves nothing to choose by"):
        tiny(data=dict(validation=0), train=train)


def test_folds_are_disjoint_runs_over_all_images(tmp_path: Path):
    configs = [tiny(data=dict(folds=3, fold=fold)) for fold in range(3)]
    parts = []
    for config in configs:
        training = held(tmp_path / str(config.data.fold), config)
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


def test_a_subset_trains_on_as_many_images(tmp_path: Path):
    training = held(tmp_path, tiny(data=dict(subset=40, validation=10)))
    assert training.validation is not None
    assert (len(training.loader.indices), len(training.validation.indices)) == (30, 10)


def test_drop_last(tmp_path: Path):
    _, events = fit(tmp_path, tiny(train=dict(drop_last=True)))
    assert {step.steps for step in of(Step, events)} == {5}


def test_only_training_images_are_augmented(tmp_path: Path):
    training = held(tmp_path, tiny(data=dict(augment="crop(2)|flip")))
    assert training.validation is not None
    assert training.loader.augment is not None
    assert training.validation.augment is None
    assert training.test.augment is None


def test_asking_to_stop_after_an_epoch_prunes_the_run_and_training_it_again_goes_on(tmp_path: Path):
    events: list[Any] = []

    def listen(event: Any, config: Any) -> bool:
        events.append(event)
        return isinstance(event, Epoch) and event.epoch == 1

    config = tiny(train=dict(epochs=5))
    run = favorit.train(config, out=tmp_path / "pruned", listen=listen)
    assert [event.epoch for event in of(Epoch, events)] == [0, 1]
    assert isinstance(events[-1], End)
    assert (run.result["status"], run.result["epochs"]) == ("pruned", 2)
    assert "test" not in run.result
    assert favorit.runs(tmp_path / "pruned").status.tolist() == ["pruned"]
    again, whole = favorit.train(config, out=tmp_path / "pruned"), favorit.train(config, out=tmp_path / "whole")
    assert again.result["status"] == "complete"
    assert untimed(again) == untimed(whole)
    assert again.result["test"] == whole.result["test"]


def test_asking_to_stop_after_the_last_epoch_changes_nothing(tmp_path: Path):
    run = favorit.train(tiny(), out=tmp_path, listen=lambda event, _: isinstance(event, Epoch) and event.epoch == 1)
    assert run.result["status"] == "complete"


def test_what_a_listener_says_about_a_step_does_not_stop_anything(tmp_path: Path):
    run = favorit.train(tiny(), out=tmp_path, listen=lambda event, _: isinstance(event, Step))
    assert run.result["epochs"] == 2


def test_mixture_parameters_are_logged_for_each_layer_and_epoch(tmp_path: Path):
    run, events = fit(tmp_path, tiny(model=dict(layout="mixture"), train=dict(select="last", lr=0.05)))
    logged = [epoch.scalars for epoch in of(Epoch, events)]
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
    assert any("in fp32: " in path for path in half.result["paths"]), "as they were taken, under autocast"
    assert not any("in fp32: " in path for path in full.result["paths"])


@pytest.mark.parametrize("precision", [32, "32"])
def test_precision_may_be_written_as_a_number(precision):
    assert tiny(train=dict(precision=precision)).train.precision == "32"


def test_compiled_or_not_is_the_same_model(tmp_path: Path, monkeypatch):
    """torch.compile itself is torch's matter, and slow: what is compiled, and that its weights are the run's, is
    ours.
    """
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled.append(model) or model)
    one, other = fit(tmp_path / "a", tiny())[0], fit(tmp_path / "b", tiny(), compiled=True)[0]
    assert [type(model) for model in compiled] == [favorit.ViT]
    assert untimed(one) == untimed(other)


# Failure.


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path):
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


def test_weights_that_the_last_step_ruined_do_not_pass_for_a_complete_run(tmp_path: Path):
    """One step in one epoch: no further loss of training would show it."""
    config = tiny(train=dict(lr=1e30, schedule="constant", epochs=1, batch_size=96))
    with pytest.raises(DivergedError, match="the validation loss became nan at epoch 1, step 1 of 1"):
        fit(tmp_path, config)
    (folder,) = (RunFolder(path) for path in tmp_path.iterdir())
    result = folder.result()
    assert result is not None
    assert result["status"] == "failed"


def test_without_validation_images_the_test_finds_the_ruined_weights(tmp_path: Path):
    config = tiny(
        data=dict(validation=0), train=dict(lr=1e30, schedule="constant", epochs=1, batch_size=120, select="last")
    )
    with pytest.raises(
        DivergedError, match="answers to test images became other than numbers at epoch 1, step 1 of 1; the first layer"
    ):
        fit(tmp_path, config)
    (folder,) = (RunFolder(path) for path in tmp_path.iterdir())
    assert (folder.result() or {})["status"] == "failed"


def test_a_diagnosis_names_the_layer(tmp_path: Path):
    """An output that overflows in the second block, finite weights: what is before is finite, what is after is not."""
    model = favorit.create_model(tiny().model, seed=0)
    layer = dict(model.named_modules())["blocks.1.feed_forward.branch.0"]
    images = torch.randn(2, model.config.channels, *model.config.image_size)
    with torch.no_grad():
        layer.weight.fill_(3e38)
    found = diagnose(model, images, nullcontext)
    assert "the first layer with an output that is not finite: blocks.1.feed_forward.branch.0;" in found
    sizes = dict(part.split(" ") for part in found.partition("squares: ")[2].split(", "))
    assert [name for name, size in sizes.items() if math.isfinite(float(size))] == ["stem", "blocks.0"]
    assert list(sizes) == ["stem", "blocks.0", "blocks.1", "head"]
    assert diagnose(favorit.create_model(tiny().model, seed=0), images, nullcontext).startswith(
        "every layer gives finite numbers"
    )
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training


def test_a_mistake_leaves_no_folder(tmp_path: Path):
    with pytest.raises(FavoritError, match="subset"):
        fit(tmp_path, tiny(data=dict(subset=10**6)))
    assert list(tmp_path.iterdir()) == []


def test_a_listener_that_raises_leaves_a_run_that_goes_on(tmp_path: Path):
    def listen(event: Any, config: Any) -> None:
        if isinstance(event, Epoch):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(tiny(), out=tmp_path, listen=listen)
    run, events = fit(tmp_path, tiny())
    assert [epoch.epoch for epoch in of(Epoch, events)] == [1]
    assert untimed(run) == untimed(fit(tmp_path / "other", tiny())[0])


@pytest.mark.parametrize(("accelerator", "devices"), [("cuda", 1), ("gpu9", 1), ("cpu", 0), ("cpu", -2)])
def test_a_device_that_is_not_there_is_a_mistake(tmp_path: Path, accelerator, devices):
    if accelerator == "cuda":
        assert not torch.cuda.is_available(), "this test is for machines without CUDA"
    with pytest.raises(FavoritError, match=f"{accelerator}|devices") as error:
        favorit.train(tiny(), out=tmp_path, accelerator=accelerator, devices=devices)
    assert str(error.value).count("\n") == 0


def test_a_batch_that_cannot_be_shared_is_a_mistake(tmp_path: Path, monkeypatch):
    """Every process finds it out by itself, before any of them waits for another."""
    from favorit.training import run as module

    class Two:
        global_rank, world_size, is_global_zero = 1, 2, False

        def broadcast(self, value: Any) -> Any:
            return value

    monkeypatch.setattr(module, "_launch", lambda *arguments: Two())
    with pytest.raises(FavoritError, match="batch_size=15 cannot be shared equally between 2 processes"):
        favorit.train(tiny(train=dict(batch_size=15)), out=tmp_path, devices=2)
    assert list(tmp_path.iterdir()) == []
