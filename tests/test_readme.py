"""The README is true: its Python lines run, its commands and options exist, its links and pictures exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from favorit.cli.main import app
from favorit.study.load import built_in

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# Two screens of about 60 lines.
MOST_LINES = 130


def commands() -> Iterator[list[str]]:
    """The words of each `favorit ...` line in fenced blocks, without comments."""
    for block in re.findall(r"^```\w*\n(.*?)^```", README, re.S | re.M):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["favorit"]:
                yield words[1:]


@pytest.mark.parametrize("words", [*commands()], ids=" ".join)
def test_command_and_options_exist(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in words if word.startswith("-")} <= known


def test_five_lines_of_python_run() -> None:
    block = re.search(r"## Five lines of Python\n.*?```python\n(.*?)```", README, re.S)
    assert block is not None
    names: dict[str, object] = {}
    exec(block[1], names)
    assert names["logits"].shape == (8, 10)  # type: ignore[attr-defined]
    assert names["tokens"].shape == (8, 55, 64)  # type: ignore[attr-defined]


def test_links_and_pictures_exist() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert not [target for target in targets if not (ROOT / target).exists()]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make (\w+)", README))
    assert {"demo", "test"} <= targets
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)]


def test_every_report_is_named_with_its_study() -> None:
    named = re.findall(r"^\| `([\w-]+)` \|", README, re.M)
    assert set(named) == set(built_in()) - {"quickstart"}


def test_readme_fits_two_screens() -> None:
    assert len(README.splitlines()) <= MOST_LINES
