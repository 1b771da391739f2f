"""Commands find a run by the start of its identifier or name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import favorit
from favorit.training.find import stored_names
from training_helpers import fit, tiny

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `runs` with two runs, named `point seed=0` and `point seed=1`, and an image beside it."""
    place = tmp_path_factory.mktemp("find")
    for seed in (0, 1):
        fit(place / "runs", tiny(train=dict(epochs=1), seed=seed), name=f"point seed={seed}")
    Image.new("RGB", (8, 8)).save(place / "image.png")
    return place


@pytest.mark.parametrize(
    "arguments",
    [["evaluate", "RUN"], ["predict", "RUN", "image.png"], ["doctor", "RUN", "--images", "2", "--m", "4"]],
    ids=lambda arguments: arguments[0],
)
def test_command_takes_the_start_of_an_identifier_or_name(
    arguments: list[str], folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def output(run: str, *options: object) -> object:
        given = [str(folder / each) if each == "image.png" else each.replace("RUN", run) for each in arguments]
        status, out, err = command(*given, *options, "--json")
        assert status == 0, err
        found = json.loads(out.splitlines()[-1])
        return {
            key: value
            for key, value in found.items()
            if "seconds" not in key and key not in ("run", "images_per_second", "peak_memory")
        }

    (identifier,) = (key for key, name in stored_names(folder / "runs").items() if name.name == "point seed=1")
    monkeypatch.chdir(folder)
    expected = output(f"runs/{identifier}")
    assert output(identifier[:12]) == output("point seed=1") == output(f"runs/{identifier[:12]}") == expected
    monkeypatch.chdir(tmp_path)
    assert output(identifier[:12], "--runs", folder / "runs") == output("point seed=1", "--runs", folder / "runs")
    status, _, err = command(*(each.replace("RUN", "point") for each in arguments), "--runs", folder / "runs")
    assert (status, err.count("\n")) == (2, 1)
    assert "point is the start of 2 runs in" in err
    assert "(point seed=0)" in err


def test_train_takes_the_configuration_of_a_run_by_name(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(folder)
    for given in ("point seed=1", "runs/point seed=1"):
        status, out, err = command("train", "--config", given, "--set", "train.lr=0.02", "--out", tmp_path, "--json")
        assert status == 0, err
        config = favorit.Run(tmp_path / json.loads(out)["id"]).config
        assert (config.seed, config.train.lr) == (1, 0.02)
    status, _, err = command("train", "--config", "missing.yaml")
    assert (status, err) == (2, "favorit: --config missing.yaml: No such file or directory\n")
    assert "missing is not a run" in command("train", "--config", "missing")[2]
