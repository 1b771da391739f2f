"""`favorit train`, `evaluate`, `predict` and `runs`: effects, output and errors."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import favorit
from favorit import RunConfig
from favorit.cli import main
from favorit.training import Epoch
from favorit.training.identity import run_id
from training_helpers import DATA, MODEL, finish, fit, pictures, plain, resolved, start, tiny, untimed

CPU = ("--accelerator", "cpu")


def settings(**sections: dict[str, Any]) -> list[str]:
    """The command line arguments `--set section.key=value` for these fields."""
    return [
        part
        for section, fields in sections.items()
        for key, value in fields.items()
        for part in ("--set", f"{section}.{key}={value}")
    ]


TINY = [*CPU, *settings(model=MODEL, data=dict(name=DATA), train=dict(batch_size=16, lr=0.01)), "--epochs", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> favorit.Run:
    return fit(tmp_path_factory.mktemp("runs"), tiny())[0]


@pytest.fixture(scope="module")
def shades(tmp_path_factory: pytest.TempPathFactory) -> favorit.Run:
    """A run on black and white images."""
    folder = tmp_path_factory.mktemp("shades")
    path = pictures(folder / "images", {"black": 30, "white": 30})
    return fit(folder / "runs", tiny(data=dict(name=f"folder('{path}', 8)", validation=0.2), train=dict(epochs=4)))[0]


def only(out: Path) -> favorit.Run:
    (result,) = out.glob("*/result.json")
    return favorit.Run(result.parent)


# train


def test_command_and_python_train_the_same_run(command, tmp_path: Path, run):
    status, out, err = command("train", *TINY, "--out", tmp_path)
    assert (status, err) == (0, "")
    made = only(tmp_path)
    assert made.id == run.id
    assert untimed(made) == untimed(run)
    lines = out.splitlines()
    assert [line[:11] for line in lines if line.startswith("epoch ")] == ["epoch   1/2", "epoch   2/2"]
    assert f"{run.result['test']['accuracy']:.2%}" in out
    assert f"run {made.id} in {made.path}" in out
    assert "1,683" in out


def test_first_line_shows_the_mixer_of_each_layer(command, tmp_path: Path):
    arguments = [*TINY, "--epochs", "1", *settings(model=dict(depth=4, layout="none|uniform"))]
    assert command("train", *arguments, "--out", tmp_path)[1].startswith("layers 1 to 4: none|uniform|none|uniform\n")


def test_options_set_the_fields_they_name(command, monkeypatch):
    from favorit import training

    calls: list[tuple[RunConfig, Any]] = []

    def stop(config: RunConfig, **options: Any) -> None:
        calls.append((config, options["out"]))
        raise favorit.FavoritError("stopped by the test")

    monkeypatch.setattr(training, "train", stop)
    model = settings(model={"layout": "performer_first", "performer": "relu(m=128)"})
    assert (
        command(
            "train", "--data", "cifar10", "--preset", "vit-64", *model, "--epochs", "5", "--seed", "42", "--out", "runs"
        )[0]
        == 2
    )
    ((config, out),) = calls
    assert (config.data.name, config.train.epochs, config.seed, out) == ("cifar10", 5, 42, Path("runs"))
    expected = favorit.create_model("vit-64", layout="performer_first", performer="relu(m=128)").config
    assert config.model == expected


def test_json_is_the_only_output_on_stdout(command, tmp_path: Path):
    status, out, err = command("train", *TINY, "--out", tmp_path, "--json")
    made = only(tmp_path)
    assert status == 0
    assert [json.loads(line) for line in out.splitlines()] == [{"id": made.id, "path": str(made.path), **made.result}]
    assert "epoch   1/2" in err


def test_finished_run_is_printed_and_not_trained_again(command, run):
    before = (run.path / "result.json").stat().st_mtime_ns
    status, out, _ = command("train", *TINY, "--out", run.path.parent)
    assert status == 0
    assert "epoch   1/2" not in out
    assert f"run {run.id}" in out
    assert (run.path / "result.json").stat().st_mtime_ns == before


CONFIG = f"""
model:
  preset: vit-64
  dim: 8
  heads: 2
  depth: 2
  mlp_dim: 16
  layout: relu(m=4)|softmax
data:
  name: {DATA}
  augment: crop(1)|flip
train:
  epochs: 9
  batch_size: 16
  lr: 1e-2
  precision: 32
  class_weights: true
seed: 7
"""


def test_settings_override_a_config_file(command, tmp_path: Path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    arguments = ("--config", tmp_path / "run.yaml", "--epochs", "1", *settings(train=dict(batch_size=32)))
    status, _, err = command("train", *CPU, *arguments, "--out", tmp_path / "runs")
    assert (status, err) == (0, "")
    config = only(tmp_path / "runs").config
    assert (config.seed, config.train.epochs, config.train.batch_size, config.train.lr) == (7, 1, 32, 0.01)
    assert (config.train.class_weights, config.train.precision) == (True, "32")
    assert (config.model.layout, config.model.dim, config.data.augment) == ("relu(m=4)|softmax", 8, "crop(1)|flip")


def test_json_config_file_gives_the_same_run_as_python(command, tmp_path: Path, run):
    (tmp_path / "run.yaml").write_text(json.dumps(plain()))
    assert command("train", *CPU, "--config", tmp_path / "run.yaml", "--out", tmp_path / "runs")[0] == 0
    assert only(tmp_path / "runs").id == run.id


def test_folds_trains_every_fold_and_prints_the_mean(command, tmp_path: Path):
    status, out, err = command("train", *TINY, "--epochs", "1", "--folds", "3", "--out", tmp_path, "--json")
    assert status == 0
    *found, together = [json.loads(line) for line in out.splitlines()]
    assert len({line["id"] for line in found}) == 3
    for fold, line in enumerate(found):
        config = tiny(train=dict(epochs=1), data=dict(folds=3, fold=fold))
        resolved_config, data = resolved(config)
        assert line["id"] == run_id(resolved_config, data.digest)
    assert together["folds"] == 3
    for part in ("validation", "test"):
        mean = sum(line[part]["accuracy"] for line in found) / 3
        assert together["mean"][part] == pytest.approx(mean)
        assert f"{mean:.2%}" in next(text for text in err.splitlines() if text.startswith("mean"))
    assert "deviation" in err
    listed = command("runs", tmp_path)[1].splitlines()
    place = listed[0].index("fold") + len("fold") - 1
    assert sorted(line[place] for line in listed[1:]) == ["1", "2", "3"]
    assert [text for text in err.splitlines() if text.startswith("fold")] == [
        "fold 1 of 3",
        "fold 2 of 3",
        "fold 3 of 3",
    ]


def test_tensorboard_option_writes_curves(command, tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    arguments = [*TINY, *settings(model=dict(layout="mixture"))]
    assert command("train", *arguments, "--out", tmp_path, "--tensorboard")[0] == 0
    made = only(tmp_path)
    (events,) = (tmp_path / "tensorboard").rglob("events.*")
    reader = EventAccumulator(str(events.parent)).Reload()
    expected = {
        "loss/train",
        "accuracy/train",
        "loss/validation",
        "accuracy/validation",
        "lr",
        "blocks.0.a",
        "blocks.1.a",
    }
    assert expected <= set(reader.Tags()["scalars"])
    curve = reader.Scalars("loss/validation")
    assert [point.step for point in curve] == [1, 2]
    assert [point.value for point in curve] == pytest.approx(
        [record["validation_loss"] for record in made.epochs], rel=1e-6
    )
    assert len(favorit.runs(tmp_path)) == 1


def test_tensorboard_option_without_the_package_names_the_extra(command, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    status, out, err = command("train", *TINY, "--out", tmp_path, "--tensorboard")
    assert (status, out) == (2, "")
    assert "pip install 'favorit[tensorboard]'" in err


def test_terminal_shows_a_progress_bar(tmp_path: Path, monkeypatch, capsys):
    """FORCE_COLOR makes rich treat the output as a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["favorit", "train", *TINY, "--epochs", "3", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr().out
    assert not end.value.code
    assert "\x1b[" in shown
    assert "accuracy" in shown
    assert "images/s" in shown
    assert "epoch   3/3" in shown


# Arguments with a mistake, and words that the error message must contain.
MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "field": (settings(train=dict(epoch=3)), ["'epoch'", "did you mean 'epochs'"]),
    "field of data": (settings(data=dict(agument="flip")), ["'agument'", "did you mean 'augment'"]),
    "section": (["--set", "training.epochs=3"], ["'training'", "did you mean 'train'"]),
    "optimizer": (settings(train=dict(optimizer="adamm")), ["optimizer 'adamm'", "did you mean 'adam", "sgd"]),
    "schedule": (settings(train=dict(schedule="cosin")), ["schedule 'cosin'", "did you mean 'cosine'", "one_cycle"]),
    "augmentation": (settings(data=dict(augment="flp")), ["augmentation 'flp'", "did you mean 'flip'"]),
    "preset": (["--preset", "vti-64"], ["preset 'vti-64'", "did you mean 'vit-64'"]),
    "data set": (settings(data=dict(name="mnits")), ["data set 'mnits'", "did you mean 'mnist'"]),
    "folder of images": (settings(data=dict(name="folder:/nowhere")), ["folder:/nowhere", "folder not found"]),
    "folder of images without a path": (settings(data=dict(name="folder:")), ["folder: the path is empty"]),
    "relative folder": (
        settings(data=dict(name="folder:nowhere")),
        ["folder:nowhere", "relative paths start at the working directory"],
    ),
    "two data sets": (["--data", "digits"], ["--data digits and --set data.name both set data.name"]),
    "two numbers of epochs": (
        settings(train=dict(epochs=0)),
        ["--epochs 2 and --set train.epochs both set train.epochs"],
    ),
    "fold and folds": ([*settings(data=dict(folds=3, fold=1)), "--folds", "2"], ["--folds trains every fold"]),
    "classes": (settings(model=dict(classes=3)), ["--set model.classes is not valid: the data set determines it"]),
    "fold out of range": (settings(data=dict(folds=3, fold=3)), ["folds=3, fold=3", "0..folds-1"]),
    "folds without a fold": (settings(data=dict(folds=3)), ["folds=3, fold=None", "give both"]),
    "one fold": (["--folds", "1"], ["--folds", "at least 2"]),
    "negative folds": (["--folds", "-1"], ["--folds", "at least 2"]),
    "no epochs": (["--epochs", "0"], ["epochs=0", "at least 1"]),
    "negative seed": (["--seed", "-1"], ["seed=-1", "at least 0"]),
    "learning rate": (settings(train=dict(lr="fast")), ["lr='fast'", "number"]),
    "precision": (settings(train=dict(precision=64)), ["precision=64", "bf16"]),
    "no validation": (settings(data=dict(validation=0)), ["data.validation=0", "train.select=last"]),
    "too much validation": (settings(data=dict(validation=96)), ["validation=96", "96 images"]),
    "subset": (settings(data=dict(subset=97)), ["subset=97", "1..96"]),
    "batch": (settings(train=dict(batch_size=200, drop_last=True)), ["batch_size=200", "drop_last leaves no batch"]),
    "patch": (settings(model=dict(stem="patch(3)")), ["(3, 3)", "(8, 8)"]),
    "accelerator": (["--accelerator", "gpu9"], ["gpu9", "cpu"]),
    "devices": (["--devices", "0"], ["--devices 0", "at least 1"]),
}


@pytest.mark.parametrize(("arguments", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_one_line_and_exit_status_2(command, tmp_path: Path, arguments, words):
    status, out, err = command("train", *TINY, *arguments, "--out", tmp_path)
    assert (status, out) == (2, ""), err
    assert err.startswith("favorit: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert [word for word in words if word not in err] == [], err
    assert favorit.runs(tmp_path).empty


FILES: dict[str, tuple[bytes | None, list[str]]] = {
    "missing": (None, ["no such file"]),
    "not YAML": (b"model: [unclosed", ["is not YAML"]),
    "two values": (b"a: b: c", ["is not YAML"]),
    "bytes": (b"\xff\xfe\x00\x80", ["is not YAML"]),
    "deep": (b"model: " + b"[" * 3000 + b"]" * 3000, ["is nested too deeply"]),
    "digits": (b"seed: " + b"9" * 5000, ["is not YAML", "4300 digits"]),
    "empty": (b"", ["expected a mapping with sections among model, data, train"]),
    "list": (b"- 1\n- 2\n", ["expected a mapping with sections"]),
    "section of text": (b"model: vit-64\n", ["expected a mapping with sections"]),
    "unknown section": (b"modle: {dim: 8}\n", ["'modle'", "did you mean 'model'"]),
    "unknown field": (b"train: {epoch: 3}\n", ["'epoch'", "did you mean 'epochs'"]),
    "unknown preset": (b"model: {preset: vti-64}\n", ["'vti-64'", "did you mean 'vit-64'"]),
    "number as a section": (b"1: 2\n", ["'1'", "known: data, model"]),
    "number as a field": (b"model: {1: 2}\n", ["'1'", "known: act"]),
    "seed": (b"seed: first\n", ["seed='first'"]),
}


@pytest.mark.parametrize(("content", "words"), FILES.values(), ids=FILES)
def test_invalid_config_file_is_one_line(command, tmp_path: Path, content, words):
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_bytes(content)
    status, out, err = command("train", "--config", path, "--out", tmp_path / "runs")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert [word for word in words if word not in err] == [], err
    assert not (tmp_path / "runs").exists()


def test_diverged_run_is_one_line_and_is_listed_as_failed(command, tmp_path: Path):
    arguments = ("train", *TINY, *settings(train=dict(lr="1e30")), "--out", tmp_path)
    for words in ("favorit: the loss became nan at epoch 1, step 2 of 6", "failed before"):
        status, _, err = command(*arguments)
        assert (status, err.count("\n")) == (2, 1), err
        assert words in err
        assert "train.lr" in err
    listed = command("runs", tmp_path)[1]
    assert "failed" in listed
    assert "the loss became nan" in listed


def test_setting_a_field_that_the_data_set_determines_is_rejected(command, tmp_path: Path):
    status, _, err = command("train", *TINY, "--set", "model.image_size=64", "--out", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "--set model.image_size is not valid: the data set determines it (data.preprocess=resize(64)" in err


def test_config_of_a_finished_run_gives_the_same_run(command, tmp_path: Path, run):
    status, out, err = command("train", "--config", run.path / "config.json", "--out", run.path.parent, "--json")
    assert status == 0
    assert json.loads(out)["id"] == run.id
    assert "already complete: nothing to train" in err


def test_resumed_run_prints_its_step(command, tmp_path: Path):
    def stop(event, config):
        if isinstance(event, Epoch):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(tiny(), out=tmp_path, listen=stop)
    status, out, _ = command("train", *TINY, "--out", tmp_path)
    assert status == 0
    assert "resumed after step 6" in out


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_out_of_memory_is_one_line(command, tmp_path: Path, monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("favorit.training.run.create_model", fail)
    status, _, err = command("train", *TINY, "--out", tmp_path)
    assert (status, err.count("\n")) == (1, 1)
    assert "not enough memory" in err


def test_missing_compiler_is_one_line(command, tmp_path: Path, monkeypatch):
    from torch._inductor.exc import InvalidCxxCompiler

    def fail(*arguments, **options):
        raise InvalidCxxCompiler

    monkeypatch.setattr("favorit.training.run.create_model", fail)
    status, _, err = command("train", *TINY, "--out", tmp_path, "--compile")
    assert (status, err.count("\n")) == (1, 1)
    assert "torch.compile failed (" in err
    assert "or leave out --compile" in err


def test_path_with_brackets_is_printed_unchanged(command, tmp_path: Path):
    status, out, _ = command("train", *TINY, "--epochs", "1", "--out", tmp_path / "my[old]runs")
    assert status == 0
    assert f"in {tmp_path / 'my[old]runs'}" in out


KEPT = "; completed work is kept: rerun the same command to resume"


@pytest.mark.parametrize(("call", "hint"), [(5, ""), (11, KEPT)], ids=["in the first epoch", "in the second epoch"])
def test_full_disk_is_one_line_and_rerun_resumes(command, tmp_path: Path, monkeypatch, run, call, hint):
    sync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = command("train", *TINY, "--out", tmp_path)
    assert (status, err) == (1, f"favorit: No space left on device{hint}\n")
    assert command("train", *TINY, "--out", tmp_path)[0] == 0
    assert untimed(only(tmp_path)) == untimed(run)


@pytest.mark.parametrize(("epoch", "hint"), [(1, ""), (2, KEPT)])
def test_interrupt_is_one_line_and_exit_status_130(command, tmp_path: Path, monkeypatch, epoch, hint):
    from favorit.training.engine import Training

    train_epoch, calls = Training._train_epoch, []

    def interrupted(self: Training) -> Any:
        calls.append(self)
        if len(calls) == epoch:
            raise KeyboardInterrupt
        yield from train_epoch(self)

    monkeypatch.setattr(Training, "_train_epoch", interrupted)
    status, _, err = command("train", *TINY, "--out", tmp_path)
    assert (status, err) == (130, f"favorit: interrupted{hint}\n")
    assert "stopped" in command("runs", tmp_path)[1]


HOLDER = """
import sys
from favorit.cli import main
from favorit.training import Step, run
def wait(event, config, listen=None):
    if isinstance(event, Step) and event.step == 2:
        print("training", flush=True)
        sys.stdin.read(1)
train = run.train
import favorit.training
favorit.training.train = lambda config, **options: train(config, **{**options, "listen": wait})
main()
"""


def test_second_command_for_a_run_in_training_exits_with_status_2(command, tmp_path: Path, run):
    """The second command prints one line and does not disturb the first."""
    process = start("-c", HOLDER, "train", *TINY, "--out", tmp_path, stdin=-1)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "training\n"
    status, out, err = command("train", *TINY, "--out", tmp_path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "is being trained by another process" in err
    assert "training" in command("runs", tmp_path)[1]
    process.stdin.write("x" * 10)
    assert finish(process)[0] == 0
    assert untimed(only(tmp_path)) == untimed(run)


# evaluate


def test_evaluate_as_json_equals_the_result(command, run):
    status, out, err = command("evaluate", run.path, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found.pop("run") == str(run.path)
    assert found.pop("classes") == ["class 0", "class 1", "class 2"]
    for key in ("test", "parameters", "flops", "flags"):
        assert found.pop(key) == run.result[key]
    times = ("inference_seconds", "inference_batch", "inference_seconds_per_batch", "images_per_second", "peak_memory")
    assert found.keys() == set(times) <= run.result.keys()


def test_evaluate_prints_tables(command, run):
    status, out, _ = command("evaluate", run.path)
    test = run.result["test"]
    assert status == 0
    for text in (
        f"{test['accuracy']:.2%}",
        f"{test['loss']:.4f}",
        f"{test['calibration_error']:.4f}",
        "class 2",
        f"{test['f1'][1]:.2%}",
    ):
        assert text in out
    for text in ("ms for a batch of", "images/s", "peak memory", f"{run.result['parameters']:,} parameters", "MFLOPs"):
        assert text in out
    assert "flags" not in out


def test_evaluate_prints_the_flags_of_a_run(command, tmp_path: Path):
    assert command("train", *TINY, *settings(data=dict(test_subset=9)), "--out", tmp_path)[0] == 0
    assert "flags: test-subset" in command("evaluate", only(tmp_path).path)[1]


@pytest.mark.parametrize("arguments", [["evaluate", "nowhere"], ["predict", "nowhere", "x.png"]], ids=" ".join)
def test_missing_run_is_one_line(command, arguments):
    status, out, err = command(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "nowhere is not a run" in err
    assert "favorit runs" in err


def test_evaluate_rejects_an_unfinished_run_with_weights(command, run, tmp_path: Path):
    for name in ("config.json", "best.safetensors"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    status, _, err = command("evaluate", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert f"{tmp_path} is stopped, not complete: only the weights that a complete run selected can be tested" in err
    (tmp_path / "result.json").write_text(json.dumps({"schema": 1, "status": "failed", "error": "the loss became nan"}))
    assert "is failed, not complete" in command("evaluate", tmp_path)[2]


# predict


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (40, 25), (20, 20, 20)).save(folder / "night.png")
    Image.new("L", (9, 30), 230).save(folder / "snow.jpg")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_predict_prints_images_in_order(command, shades, photos):
    status, out, err = command("predict", shades.path, photos / "snow.jpg", photos / "night.png")
    assert (status, err) == (0, "")
    lines = [line for line in out.splitlines() if "photos" in line]
    assert ["white" in lines[0], "black" in lines[1]] == [True, True]
    assert out.index("snow.jpg") < out.index("night.png")
    assert out.count("%") == 2


def test_predict_as_json_has_sorted_probabilities(command, shades, photos):
    status, out, _ = command("predict", shades.path, photos, "--json", "--top", "2")
    assert status == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [Path(line["image"]).name for line in found] == ["night.png", "snow.jpg"]
    assert [[each["class"] for each in line["classes"]] for line in found] == [["black", "white"], ["white", "black"]]
    for line in found:
        probabilities = [each["probability"] for each in line["classes"]]
        assert probabilities[0] > 0.5 > probabilities[1]
        assert sum(probabilities) == pytest.approx(1)
    pixels = torch.full((1, 3, 8, 8), 20, dtype=torch.uint8)
    assert found[0]["classes"][0]["probability"] == pytest.approx(
        favorit.load(shades).probabilities(pixels)[0, 0].item(), rel=1e-6
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [("absent.png", ["absent.png", "file not found"]), ("notes.txt", ["notes.txt", "cannot be read as an image"])],
)
def test_predict_unreadable_image_is_one_line(command, shades, photos, name, words):
    status, out, err = command("predict", shades.path, photos / name)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert all(word in err for word in words)


def test_unreadable_image_does_not_stop_the_others(command, shades, photos):
    arguments = ("predict", shades.path, photos / "snow.jpg", photos / "absent.png", photos / "snow.jpg")
    status, out, err = command(*arguments)
    assert (status, err.count("\n")) == (1, 1)
    assert "absent.png: file not found" in err
    assert out.count("white") == 2
    status, out, _ = command(*arguments, "--json")
    first, absent, again = (json.loads(line) for line in out.splitlines())
    assert (status, first) == (1, again)
    assert (absent["classes"], first["error"]) == ([], None)
    assert "file not found" in absent["error"]


def test_predict_finds_images_in_nested_folders(command, shades, photos):
    status, out, _ = command("predict", shades.path, photos.parent, "--json")
    assert status == 0
    assert [Path(json.loads(line)["image"]).name for line in out.splitlines()] == ["night.png", "snow.jpg"]


def test_predict_folder_without_images_is_one_line(command, shades, tmp_path: Path):
    status, _, err = command("predict", shades.path, tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "no images in this folder" in err


# runs


def test_runs_prints_a_table(command, run):
    status, out, err = command("runs", run.path.parent)
    assert (status, err) == (0, "")
    for text in (run.id, "complete", f"{run.result['test']['accuracy']:.2%}", f"{run.result['parameters']:,}"):
        assert text in out


def test_runs_as_json_has_one_line_for_each_run(command, run):
    status, out, _ = command("runs", run.path.parent, "--json")
    (found,) = (json.loads(line) for line in out.splitlines())
    assert status == 0
    assert (found["id"], found["status"], found["train.lr"]) == (run.id, "complete", 0.01)
    assert found["test.accuracy"] == pytest.approx(run.result["test"]["accuracy"])


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_runs_of_an_empty_folder_lists_no_runs(command, tmp_path: Path, option):
    status, out, err = command("runs", tmp_path, *option)
    assert status == 0
    assert "favorit:" not in err
    assert out.strip() == "" if option else "no runs in" in out
