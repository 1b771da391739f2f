"""Two processes that share each batch train the same model as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_helpers import finish, plain, start

import favorit

# 97 images in batches of 20: the last has 17, which two processes share 8 to 9. Four epochs are twenty steps.
CONFIG: dict[str, Any] = plain(
    model=dict(layout="favor(m=8)|softmax"),
    data=dict(name="synthetic(size=8, classes=3, train=97, test=48)", validation=0, augment="crop(2)|flip|cutout(2)|mixup(0.4)"),
    train=dict(
        epochs=4, batch_size=20, optimizer="sgd", lr=0.1, weight_decay=0.0, schedule="constant", select="last", redraw="epoch", ema=0.9
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


def gradients(folder: Path) -> list[torch.Tensor]:
    """After one step of SGD without weight decay, the momentum of each parameter is its gradient."""
    saved = torch.load(folder / "first" / "state.pt", weights_only=True)
    assert saved["progress"]["step"] == 1
    return [state["momentum_buffer"] for _, state in sorted(saved["states"][0]["state"].items())]


def test_it_was_two_processes(trained):
    assert {devices: run(folder).result["environment"]["processes"] for devices, folder in trained.items()} == {1: 1, 2: 2}


def test_they_are_the_same_run(trained):
    assert run(trained[1]).id == run(trained[2]).id
    assert run(trained[2]).result["epochs"] == 4


def test_the_gradients_of_the_first_step(trained):
    one, two = (gradients(trained[devices]) for devices in (1, 2))
    assert len(one) == len(two) > 20
    assert max(float(gradient.abs().max()) for gradient in one) > 0.01
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["best.safetensors", "best-ema.safetensors"])
def test_the_weights_after_twenty_steps(trained, name):
    one, two = (load_file(run(trained[devices]).path / name) for devices in (1, 2))
    first = load_file(trained[1] / "first" / "model.safetensors")
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


def test_a_batch_that_cannot_be_shared_is_a_mistake_in_every_process(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(json.dumps({**CONFIG, "train": {**CONFIG["train"], "batch_size": 15}}))
    arguments = ("--config", tmp_path / "config.yaml", "--accelerator", "cpu", "--devices", "2", "--out", tmp_path / "runs")
    status, _, errors = finish(start("-m", "favorit", "train", *arguments))
    assert status == 2
    assert "batch_size=15 cannot be shared equally between 2 processes" in errors
    assert "Traceback" not in errors
