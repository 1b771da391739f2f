"""`--import FILE` on every command, and commands on a run whose file is remembered."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.conftest import Command
from favorit.bench.busy import slowdowns
from favorit.cli.main import app
from favorit.config import ModelConfig
from favorit.origins import import_file
from favorit.tuning import tune
from favorit.tuning.events import TrialFinished
from own_files import NewProcess, executions, new_process, write_kernel
from training_helpers import DATA, plain

__all__ = ["new_process"]
TINY = [f"model.{key}={value}" for key, value in plain()["model"].items()]
SETTINGS = [part for setting in (*TINY, "train.epochs=1", f"data.name={DATA}") for part in ("--set", setting)]


def commands(command: Any, name: str) -> dict[str, Any]:
    """Each command below a group with its full name."""
    if not hasattr(command, "commands"):
        return {name: command}
    return {
        key: each for part, own in command.commands.items() for key, each in commands(own, f"{name} {part}").items()
    }


COMMANDS = commands(get_command(app), "favorit")


def test_commands_are_found() -> None:
    assert {"favorit train", "favorit runs list", "favorit bench speed", "favorit study run"} <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_the_option(name: str) -> None:
    (option,) = (each for each in COMMANDS[name].params if "--import" in each.opts)
    assert option.multiple


def test_file_is_imported_before_the_command(tmp_path: Path, command: Command, new_process: NewProcess) -> None:
    first = write_kernel(tmp_path / "first.py", "own_first")
    second = write_kernel(tmp_path / "second.py", "own_second")
    status, out, err = command("list", "kernels", "--json", "--import", first, "--import", second)
    assert (status, err) == (0, "")
    assert {"own_first", "own_second"} <= json.loads(out)["kernels"].keys()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.py", None, "cannot read {file}: no such file or directory"),
        ("broken.py", "x = (\n", "cannot import {file}, line 1: SyntaxError: '(' was never closed"),
        ("raises.py", "import os\n1 / 0\n", "cannot import {file}, line 2: ZeroDivisionError: division by zero"),
        ("exits.py", "raise SystemExit(3)\n", "cannot import {file}, line 1: SystemExit: 3"),
        ("binary.py", "\0", "cannot import {file}: SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_file_that_cannot_be_imported_is_one_line(
    tmp_path: Path, command: Command, new_process: NewProcess, name: str, content: str | None, message: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    status, _, err = command("list", "--import", file)
    assert status == 2
    assert re.sub(r": ValueError: source", ": SyntaxError: source", err) == f"favorit: {message.format(file=file)}\n"


def test_unknown_component_hints_at_the_option(command: Command) -> None:
    for layout in ("own_unknown", "performer_first"):
        settings = ["--set", f"model.layout={layout}", "--set", "model.performer=own_unknown"]
        status, _, err = command("show", "vit-64", *settings)
        assert status == 2
        assert err.endswith("; register your own, or give its file with --import FILE\n")


def test_own_kernel_is_trained_evaluated_and_compared_with_relu(
    tmp_path: Path, command: Command, new_process: NewProcess
) -> None:
    file = write_kernel(tmp_path / "mine.py", "own_softsign")
    runs = []
    for layout in ("own_softsign", "relu"):
        imports = ["--import", file] if layout != "relu" else []
        options = ["--set", f"model.layout={layout}", "--accelerator", "cpu", "--out", tmp_path / "runs", "--json"]
        status, out, err = command("train", *SETTINGS, *options, *imports)
        assert status == 0, err
        runs.append(json.loads(out)["path"])
        new_process()
    mine, relu = runs
    note = f"favorit: importing {file} for the mixer 'own_softsign' of {mine}"
    again = ["train", "--config", mine, "--epochs", "2", "--out", tmp_path / "runs", "--accelerator", "cpu", "--json"]
    image = tmp_path / "image.png"
    write_image(image)
    for arguments in (
        ["evaluate", mine],
        ["doctor", mine, "--images", "8", "--m", "8"],
        ["predict", mine, image],
        again,
    ):
        new_process()
        status, _, err = command(*arguments)
        assert status == 0, err
        assert note in err
    new_process()
    status, out, err = command("compare", mine, relu)
    assert status == 0, err
    assert note in err
    assert "own_softsign" in out
    assert executions(file) == 6
    status, out, err = command(
        "bench",
        "speed",
        "--import",
        file,
        "--mixer",
        "relu",
        "--mixer",
        "own_softsign",
        "--repeats",
        "1",
        "--batch",
        "2",
    )
    assert status == 0, err
    assert "own_softsign" in out


def write_image(path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(path)


def test_search_processes_know_an_imported_file(tmp_path: Path, new_process: NewProcess) -> None:
    import_file(write_kernel(tmp_path / "mine.py", "own_tuned"))
    events: list[Any] = []
    base = plain(train=dict(epochs=1))
    space = {"model.layout": "choice('own_tuned', 'relu')"}
    tune(space, base, out=tmp_path, workers=2, sampler="grid", accelerator="cpu", listen=events.append)
    ends = [event for event in events if isinstance(event, TrialFinished)]
    assert [(event.state, event.error) for event in ends] == [("complete", None)] * 2


def test_timed_processes_know_an_imported_file(tmp_path: Path, new_process: NewProcess) -> None:
    import_file(write_kernel(tmp_path / "mine.py", "own_timed"))
    model = ModelConfig(layout="own_timed", dim=8, depth=1, heads=2, mlp_dim=8, image_size=8)
    assert len(slowdowns(model, 2, steps=1, repeats=1)) == 3
