"""Training with two processes (DDP) gives the same model as with one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import favorit
from favorit import RunConfig
from favorit.process import SPIN_COUNT, SPINNING
from favorit.training.folder import RunFolder
from favorit.training.run import _all_get_gradients
from training_helpers import finish, first_model, plain, resolved, start, tiny

# 97 images in batches of 20: the last batch has 17, split into 8 and 9. Four epochs are twenty steps. No class token:
# its small initial norm causes gradients of about 6, whose last two bits exceed the tolerance of 1e-6 below.
CONFIG: dict[str, Any] = plain(
    model=dict(layout="favor(m=8)|softmax", head="mean"),
    data=dict(
        name="synthetic(size=8, classes=3, train=97, test=48)",
        validation=0,
        augment="crop(2)|flip|cutout(2)|mixup(0.4)",
    ),
    train=dict(
        epochs=4,
        batch_size=20,
        optimizer="sgd",
        lr=0.1,
        weight_decay=0.0,
        schedule="constant",
        select="last",
        redraw="epoch",
        ema=0.9,
    ),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folders of the run with one process and with two."""
    place = tmp_path_factory.mktemp("ddp")
    (place / "config.json").write_text(json.dumps(CONFIG))
    for devices in (1, 2):
        script = Path(__file__).with_name("ddp_script.py")
        status, _, errors = finish(start(script, place / "config.json", place / str(devices), str(devices)))
        assert status == 0, errors
        assert "Traceback" not in errors
    return {devices: place / str(devices) for devices in (1, 2)}


def run(folder: Path) -> favorit.Run:
    (result,) = folder.glob("*/result.json")
    return favorit.Run(result.parent)


def test_run_used_two_processes(trained):
    assert {devices: run(folder).result["environment"]["processes"] for devices, folder in trained.items()} == {
        1: 1,
        2: 2,
    }


def test_number_of_processes_does_not_change_the_run_id(trained):
    assert run(trained[1]).id == run(trained[2]).id
    assert run(trained[2]).result["epochs"] == 4


def test_gradients_of_the_first_step_are_equal(trained):
    one, two = (load_file(trained[devices] / "first.safetensors") for devices in (1, 2))
    assert (
        one.keys()
        == two.keys()
        == {name for name, _ in first_model(resolved(RunConfig(**CONFIG))[0]).named_parameters()}
    )
    assert max(float(gradient.abs().max()) for gradient in one.values()) > 0.1
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["best.safetensors", "best-ema.safetensors"])
def test_weights_after_twenty_steps_are_equal(trained, name):
    one, two = (load_file(run(trained[devices]).path / name) for devices in (1, 2))
    first = first_model(resolved(RunConfig(**CONFIG))[0]).state_dict()
    assert max(float((one[key] - first[key]).abs().max()) for key in one) > 0.1
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-5)


def test_reported_losses_and_accuracies_are_equal(trained):
    """Training loss and accuracy are sums over both processes."""
    one, two = (run(trained[devices]).epochs for devices in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-4)
        assert b["train_accuracy"] == a["train_accuracy"]
        assert b["lr"] == a["lr"]
    assert run(trained[2]).result["test"]["loss"] == pytest.approx(run(trained[1]).result["test"]["loss"], rel=1e-4)
    assert run(trained[2]).result["test"]["confusion"] == run(trained[1]).result["test"]["confusion"]


def test_command_prints_each_run_once(tmp_path: Path):
    """Two folds by two processes each: two runs, each printed once."""
    data = {name: value for name, value in CONFIG["data"].items() if name != "validation"}
    config = {**CONFIG, "data": data, "train": {**CONFIG["train"], "epochs": 1}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    arguments = (
        "--config",
        tmp_path / "config.yaml",
        "--accelerator",
        "cpu",
        "--devices",
        "2",
        "--out",
        tmp_path / "runs",
    )
    status, out, errors = finish(start("-m", "favorit", "train", *arguments, "--folds", "2", "--json", "--tensorboard"))
    assert status == 0, errors
    *found, summary = [json.loads(line) for line in out.splitlines()]
    assert len({line["id"] for line in found}) == len(found) == summary["folds"] == 2
    assert [line["environment"]["processes"] for line in found] == [2, 2]
    assert errors.count("epoch   1/1") == 2
    assert errors.count("fold 2 of 2") == 1
    assert len(list((tmp_path / "runs" / "tensorboard").rglob("events.*"))) == 2


@pytest.mark.parametrize(
    ("layout", "expected"), [("softmax|favor(m=8)", True), ("uniform|softmax", False), ("uniform", False)]
)
def test_parameters_without_gradients_are_detected(layout, expected):
    """A mixer that ignores q and k leaves them and their norms without gradients. The check changes no state."""
    config = tiny(model=dict(layout=layout, qk_norm=True, stem="conv(channels=(4,))")).model
    model = favorit.create_model(config, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert _all_get_gradients(model) is expected
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_training_works_with_parameters_without_gradients(tmp_path: Path):
    changes = {
        "model": {**CONFIG["model"], "layout": "uniform|softmax", "qk_norm": True},
        "train": {**CONFIG["train"], "epochs": 1},
    }
    (tmp_path / "config.yaml").write_text(json.dumps({**CONFIG, **changes}))
    arguments = (
        "--config",
        tmp_path / "config.yaml",
        "--accelerator",
        "cpu",
        "--devices",
        "2",
        "--out",
        tmp_path / "runs",
    )
    status, _, errors = finish(start("-m", "favorit", "train", *arguments))
    assert status == 0, errors


def test_divergence_in_one_process_stops_both(tmp_path: Path):
    """A NaN loss in one process fails the run."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "train": {**CONFIG["train"], "lr": 1e30}}))
    script = Path(__file__).with_name("ddp_script.py")
    status, _, errors = finish(start(script, tmp_path / "config.json", tmp_path / "runs", "2"))
    assert status == 1
    assert "DivergedError: the loss became" in errors
    (result,) = (tmp_path / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["status"] == "failed"


def test_locked_run_is_reported_once(tmp_path: Path):
    """Both processes end; one prints the error."""
    data = {name: value for name, value in CONFIG["data"].items() if name != "validation"}
    config = {**CONFIG, "data": data, "train": {**CONFIG["train"], "epochs": 1}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    arguments = (
        "--config",
        tmp_path / "config.yaml",
        "--accelerator",
        "cpu",
        "--devices",
        "2",
        "--out",
        tmp_path / "runs",
    )
    status, _, errors = finish(start("-m", "favorit", "train", *arguments))
    assert status == 0, errors
    assert not re.search("GLOBAL_RANK|distributed|find_unused_parameters", errors), (
        "logs of the process group are hidden"
    )
    (folder,) = (tmp_path / "runs").iterdir()
    (folder / "result.json").unlink()
    with RunFolder(folder).lock():
        status, _, errors = finish(start("-m", "favorit", "train", *arguments))
    assert status == 2
    assert errors.count("is being trained by another process") == 1
    assert "Traceback" not in errors


def test_bench_epoch_with_two_processes_prints_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both processes end and use favorit's OpenMP settings; one holds the locks and prints."""
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
    for name in SPINNING:
        monkeypatch.delenv(name, raising=False)
    data = "synthetic(size=8, classes=3, train=97, test=48)"
    model = [part for field in ("dim=8", "depth=1", "heads=2", "mlp_dim=8") for part in ("--set", f"model.{field}")]
    status, output, errors = finish(
        start("-m", "favorit", "bench", "epoch", "--data", data, *model, "--devices", "2", "--json")
    )
    assert status == 0, errors
    (line,) = output.splitlines()
    cost = json.loads(line)
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\w+)'", errors)) == {SPIN_COUNT}
    assert cost["foreign_load"]["cores"] == os.cpu_count()
    assert cost["images"] == 97
    assert cost["seconds"] > 0
    assert (cost["environment"]["processes"], cost["environment"]["threads"]) == (2, torch.get_num_threads())


def test_last_batch_of_one_image_gives_the_same_loss(tmp_path: Path):
    """With two processes, one of them gets no image of that batch."""
    for devices in (1, 2):
        changes = {
            "data": {**CONFIG["data"], "augment": None},
            "train": {**CONFIG["train"], "epochs": 1, "batch_size": 32},
        }
        (tmp_path / "config.yaml").write_text(json.dumps({**CONFIG, **changes}))
        arguments = (
            "--config",
            tmp_path / "config.yaml",
            "--accelerator",
            "cpu",
            "--devices",
            str(devices),
            "--out",
            tmp_path / str(devices),
        )
        status, _, errors = finish(start("-m", "favorit", "train", *arguments))
        assert status == 0, errors
    one, two = (run(tmp_path / str(devices)).epochs[0]["train_loss"] for devices in (1, 2))
    assert one == pytest.approx(two, abs=1e-6)
