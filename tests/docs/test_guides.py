"""Commands of the README and the guides parse, Python of the guides runs, lines wrap at 100 columns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from favorit.attention import KERNELS, MIXERS
from favorit.cli.main import app
from favorit.tuning.distributions import build_distribution

ROOT = Path(__file__).parents[2]
GUIDES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(text) if found == language]


COMMANDS = [
    line.partition(" #")[0].strip()
    for text in (README, *GUIDES.values())
    for body in blocks(text, "")
    for line in body.replace("\\\n", "").splitlines()
    if line.startswith("favorit ")
]


def test_docs_folder_has_the_expected_guides() -> None:
    expected = ["index", "models", "training", "python", "studies", "reports", "tuning", "cluster", "benchmarks"]
    assert set(GUIDES) == {*expected, "extending"}
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("text", COMMANDS)
def test_command_and_its_options_exist(text: str) -> None:
    """The command is parsed with types and choices, but not run."""
    command, arguments = get_command(app), shlex.split(text)[1:]
    while arguments and hasattr(command, "commands"):
        assert arguments[0] in command.commands, text
        command = command.commands[arguments.pop(0)]
    if not hasattr(command, "commands"):
        command.make_context(text, arguments)


@pytest.mark.parametrize("guide", ["index", "models", "training", "python", "studies", "reports"])
def test_python_of_guide_runs(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    found = blocks(GUIDES[guide], "python")
    assert found
    for body in found:
        exec(body, names)


def test_search_space_of_tuning_guide_is_valid() -> None:
    import yaml

    (space,) = (yaml.safe_load(body) for body in blocks(GUIDES["tuning"], "yaml"))
    assert {key: str(build_distribution(text)) for key, text in space.items()}


def test_kernels_of_extending_guide_match_their_explicit_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are registered for this test only."""
    import torch

    for registry in (KERNELS, MIXERS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    for body in blocks(GUIDES["extending"], "python"):
        exec(body, {})
    q, k, v = torch.randn(3, 2, 2, 9, 4, generator=torch.Generator().manual_seed(0))
    for spec in ("softsign(width=0.5, m=16)", "direction"):
        mixer = MIXERS.build(spec, heads=2, head_dim=4, tokens=9, prefix=0, layer=0, seed=0)
        torch.testing.assert_close(mixer(q, k, v), mixer.weights(q, k) @ v)


@pytest.mark.parametrize("path", [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_document_wraps_at_100_columns(path: Path) -> None:
    """Tables and code blocks are exempt."""
    prose = BLOCK.sub("", path.read_text()).splitlines()
    assert [line for line in prose if len(line) > 100 and not line.startswith("|")] == []
