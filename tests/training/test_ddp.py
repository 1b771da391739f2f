"""Two processes that share each batch train the same model as one."""

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

# 97 images in batches of 20: the last has 17, which two processes share 8 to 9. Four epochs are twenty steps.
# No class token: the norm of one that starts at 0.02 makes gradients of 6, whose last two bits are the 1e-6 that is
# asked for below.
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


def test_it_was_two_processes(trained):
    assert {devices: run(folder).result["environment"]["processes"] for devices, folder in trained.items()} == {
        1: 1,
        2: 2,
    }


def test_they_are_the_same_run(trained):
    assert run(trained[1]).id == run(trained[2]).id
    assert run(trained[2]).result["epochs"] == 4


def test_the_gradients_of_the_first_step(trained):
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
def test_the_weights_after_twenty_steps(trained, name):
    one, two = (load_file(run(trained[devices]).path / name) for devices in (1, 2))
    first = first_model(resolved(RunConfig(**CONFIG))[0]).state_dict()
    assert max(float((one[key] - first[key]).abs().max()) for key in one) > 0.1
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-5)


def test_the_numbers_that_are_reported(trained):
    """Loss and accuracy of training are those of the whole batch, whoever reports them."""
    one, two = (run(trained[devices]).epochs for devices in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-4)
        assert b["train_accuracy"] == a["train_accuracy"]
        assert b["lr"] == a["lr"]
    assert run(trained[2]).result["test"]["loss"] == pytest.approx(run(trained[1]).result["test"]["loss"], rel=1e-4)
    assert run(trained[2]).result["test"]["confusion"] == run(trained[1]).result["test"]["confusion"]


def test_the_command_speaks_with_one_voice(tmp_path: Path):
    """Two folds by two processes each: two runs, each printed once."""
    (tmp_path / "config.yaml").write_text(json.dumps({**CONFIG, "train": {**CONFIG["train"], "epochs": 1}}))
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
    *found, together = [json.loads(line) for line in out.splitlines()]
    assert len({line["id"] for line in found}) == len(found) == together["folds"] == 2
    assert [line["environment"]["processes"] for line in found] == [2, 2]
    assert errors.count("epoch   1/1") == 2
    assert errors.count("fold 2 of 2") == 1
    assert len(list((tmp_path / "runs" / "tensorboard").rglob("events.*"))) == 2


@pytest.mark.parametrize(
    ("layout", "learn"), [("softmax|favor(m=8)", True), ("uniform|softmax", False), ("uniform", False)]
)
def test_whether_all_parameters_learn(layout, learn):
    """q and k of a mixer that ignores them, and their norms, do not; looking leaves nothing behind."""
    config = tiny(model=dict(layout=layout, qk_norm=True, stem="conv(channels=(4,))")).model
    model = favorit.create_model(config, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert _all_get_gradients(model) is learn
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_parameters_without_a_gradient_stop_nobody(tmp_path: Path):
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


def test_what_ends_one_process_ends_both(tmp_path: Path):
    """A loss that is no number in one process is recorded as that of the run."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "train": {**CONFIG["train"], "lr": 1e30}}))
    script = Path(__file__).with_name("ddp_script.py")
    status, _, errors = finish(start(script, tmp_path / "config.json", tmp_path / "runs", "2"))
    assert status == 1
    assert "DivergedError: the loss became" in errors
    (result,) = (tmp_path / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["status"] == "failed"


def test_a_run_that_is_held_is_said_once(tmp_path: Path):
    """Both processes end; the one that found the lock speaks."""
    (tmp_path / "config.yaml").write_text(json.dumps({**CONFIG, "train": {**CONFIG["train"], "epochs": 1}}))
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
        "what the processes tell each other is not for users"
    )
    (folder,) = (tmp_path / "runs").iterdir()
    (folder / "result.json").unlink()
    with RunFolder(folder).lock():
        status, _, errors = finish(start("-m", "favorit", "train", *arguments))
    assert status == 2
    assert errors.count("is being trained by another process") == 1
    assert "Traceback" not in errors


def test_an_epoch_of_two_processes_is_timed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second one says nothing, and both end. Both have favorit's setting of OpenMP, and one of them holds the
    locks.
    """
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


def test_of_a_last_batch_of_one_image_a_process_gets_none(tmp_path: Path):
    """The same losses as one process."""
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
