"""Every command that prints a table prints it as text, JSON, CSV, Markdown or LaTeX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image

from favorit.bench import busy as busy_bench
from favorit.bench.busy import BUSY, DEFAULT, ONE, OURS, QUIET
from favorit.bench.peers import table
from favorit.cli.main import app
from training_helpers import DATA, fit, tiny

Command = Callable[..., tuple[int, str, str]]

FORMS = ("csv", "markdown", "latex")
# Commands without a table.
NO_TABLE = {"data fetch", "data show", "report", "runs pack"}
TINY_MODEL = ("--set", "model.dim=8", "--set", "model.depth=1", "--set", "model.heads=2", "--set", "model.mlp_dim=8")
TINY_RUN = (*TINY_MODEL, "--data", DATA, "--epochs", "1", "--set", "train.batch_size=16")
STUDY = ("quickstart", "--scale", "smoke", "--only", "uniform")
# The arguments that each command is called with. RUN is the folder of a run, OUT a folder for new runs.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "list": ("kernels",),
    "show": ("vit-64",),
    "train": (*TINY_RUN, "--out", "OUT"),
    "evaluate": ("RUN",),
    "predict": ("RUN", "image.png"),
    "compare": ("RUN", "OTHER"),
    "tune": ("space.yaml", *TINY_RUN, "--sampler", "grid", "--out", "OUT"),
    "doctor": ("RUN", "--images", "4", "--m", "4"),
    "selftest": ("--only", "uniform"),
    "runs list": ("runs",),
    "study list": (),
    "study plan": (*STUDY, "--no-estimate", "--out", "OUT"),
    "study run": (*STUDY, "--out", "OUT"),
    "study status": (*STUDY, "--out", "OUT"),
    "study queue": ("queue.yaml", "--list", "--out", "OUT"),
    "data list": (),
    "bench speed": ("--tokens", "4", "--batch", "1", "--heads", "1", "--head-dim", "4", "--repeats", "1"),
    "bench epoch": (*TINY_MODEL, "--data", DATA),
    "bench peers": ("--case", "attention", "--only", "softmax", "--batch", "1", "--tokens", "4", "--repeats", "1"),
    "bench crossover": ("--tokens", "4", "--image", "8", "--batch", "1", "--heads", "1", "--repeats", "1"),
    "bench approximation": ("--tokens", "8", "--head-dim", "4", "--draws", "1", "--std", "1", "--m", "4,8"),
    "bench busy": (*TINY_MODEL, "--batch", "2", "--steps", "1", "--repeats", "1"),
}
# These commands are called in one form only, because each call trains.
SLOW = {"bench epoch", "tune"}


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(_commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, an image, a search space and a queue."""
    folder = tmp_path_factory.mktemp("forms")
    for seed in (0, 1):
        fit(folder / "runs", tiny(train=dict(epochs=1), seed=seed))
    Image.new("RGB", (8, 8)).save(folder / "image.png")
    (folder / "space.yaml").write_text("train.lr: choice(0.01, 0.02)\n")
    (folder / "queue.yaml").write_text("- study: quickstart\n  scale: smoke\n")
    return folder


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the measurements that take seconds and start processes by one row."""
    milliseconds = {QUIET: {ONE: 100.0, OURS: 62.0, DEFAULT: 60.0}, BUSY: {ONE: 100.0, OURS: 150.0, DEFAULT: 400.0}}
    rows = busy_bench.compare(
        {(load, name): [ms] * 6 for load, own in milliseconds.items() for name, ms in own.items()}
    )
    monkeypatch.setattr(busy_bench, "slowdowns", lambda *_, **__: rows)
    monkeypatch.setattr(table, "measure_rows", lambda *_, **__: [table.Row("attention", "softmax", "torch", "equal")])


def _arguments(name: str, folder: Path) -> list[str]:
    run, other = sorted((folder / "runs").iterdir())
    places = {"RUN": str(run), "OTHER": str(other), "OUT": str(folder / "out")}
    return [*name.split(), *(places.get(argument, argument) for argument in ARGUMENTS[name])]


def parse_table(text: str, form: str) -> list[list[str]]:
    """The title row and the rows of a table."""
    lines = text.splitlines()
    if form == "csv":
        return list(csv.reader(io.StringIO(text)))
    if form == "markdown":
        rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
        assert all(line.startswith("| ") and line.endswith(" |") for line in lines), text
        assert set("".join(rows.pop(1))) <= set("-:")
        return rows
    assert lines[0].startswith(r"\begin{tabular}{")
    assert (lines[1], lines[3], lines[-2], lines[-1]) == (r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}")
    body = [line for line in lines[1:-1] if not line.endswith("rule")]
    assert all(line.endswith(r" \\") for line in body), text
    rows = [line.removesuffix(r" \\").split(" & ") for line in body]
    assert len(lines[0].removeprefix(r"\begin{tabular}{").removesuffix("}")) == len(rows[0])
    return rows


def test_every_command_is_listed_as_with_or_without_table() -> None:
    assert COMMANDS.keys() == ARGUMENTS.keys() | NO_TABLE


@pytest.mark.parametrize("name", ARGUMENTS)
def test_command_has_an_option_for_each_form(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {"--json", *(f"--{form}" for form in FORMS)} <= options


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name in ARGUMENTS for form in (FORMS[:1] if name in SLOW else FORMS)],
)
def test_stdout_has_only_the_table(
    name: str, form: str, prepared: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prepared)
    status, out, err = command(*_arguments(name, prepared), f"--{form}")
    assert status == 0, err
    titles, *rows = parse_table(out.removesuffix("\n"), form)
    assert rows
    assert len(set(titles)) == len(titles) > 1
    assert {len(row) for row in rows} == {len(titles)}


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in SLOW])
def test_stdout_has_only_json(name: str, prepared: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    status, out, err = command(*_arguments(name, prepared), "--json")
    assert status == 0, err
    assert out.strip()
    assert all(json.loads(line) for line in out.splitlines())


def test_two_forms_are_rejected_before_any_work(command: Command, tmp_path: Path) -> None:
    status, out, err = command("train", *TINY_RUN, "--out", tmp_path / "runs", "--csv", "--latex")
    assert (status, out) == (2, "")
    assert err == "favorit: --csv and --latex are given: choose one form of the table\n"
    assert not (tmp_path / "runs").exists()
