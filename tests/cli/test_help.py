"""The help of every command, and completion in the shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from favorit.cli.main import app, main
from favorit.cli.usage import build_command, walk
from training_helpers import PATIENCE

COMMANDS = [path for path, _ in walk(build_command(app))]


def test_all_commands_are_found():
    assert len(COMMANDS) > 25
    assert {"", "train", "study plan", "bench crossover", "runs pack"} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_no_type_of_flags_and_no_enormous_range(command, path):
    status, out, err = command(*path.split(), "--help")
    assert (status, err) == (0, "")
    assert "--help " in out
    assert "bool" not in out
    assert not re.search(r"<=\d{6}|e\+\d\d", out)


@pytest.mark.parametrize("option", ["--data-dir", "--import"])
def test_option_of_several_commands_has_one_description(option: str):
    found = [each.help for _, command in walk(build_command(app)) for each in command.params if option in each.opts]
    assert len(found) > 5
    assert len(set(found)) == 1


@pytest.mark.parametrize("path", COMMANDS)
def test_unknown_option_names_the_help_of_its_command(command, path):
    status, out, err = command(*path.split(), "--no-such-option")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert "--no-such-option" in err
    assert f"(see {f'favorit {path}'.strip()} " in err


# completion


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The words that bash offers for the last word of a command line."""

    def run(*words: str) -> list[str]:
        monkeypatch.setenv("_FAVORIT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["favorit", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setattr(sys, "argv", ["favorit"])
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main()
        monkeypatch.delenv("_FAVORIT_COMPLETE")
        out, err = capsys.readouterr()
        assert err == ""
        return out.split()

    return run


CASES = {
    ("tr",): ["train"],
    ("study", "pl"): ["plan"],
    ("train", "--ep"): ["--epochs"],
    ("train", "--preset", "vit-6"): ["vit-64", "vit-64-mnist"],
    ("show", "vit-19"): ["vit-192-imagenet"],
    ("train", "--set", "model.lay"): ["model.layout="],
    ("train", "--accelerator", "c"): ["cpu", "cuda"],
    ("study", "run", "hy"): ["hybrids"],
    ("study", "run", "hybrids", "--scale", "s"): ["smoke", "small"],
    ("study", "run", "hybrids", "--protocol", ""): ["published", "sound"],
    ("tune", "kernels-r"): ["kernels-relu"],
    ("selftest", "--device", "m"): ["mps"],
    ("evaluate", "nothing-starts-with-this"): [],
}


@pytest.mark.parametrize(("words", "expected"), CASES.items(), ids=lambda each: " ".join(each))
def test_words_are_completed(complete, words, expected):
    assert complete(*words) == expected


def test_components_are_completed_after_favorit_list(command, complete, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FAVORIT_CACHE", str(tmp_path / "cache"))
    assert complete("bench", "speed", "--mixer", "lin") == []
    command("list")
    assert complete("bench", "speed", "--mixer", "lin") == ["linformer"]
    assert complete("train", "--data", "cifar10") == ["cifar10", "cifar100"]
    assert complete("data", "fetch", "mn") == ["mnist"]
    assert complete("list", "ker") == ["kernels"]
    names = tmp_path / "cache" / "names.json"
    names.write_text("{")
    assert complete("bench", "speed", "--mixer", "lin") == []


def test_runs_are_completed(complete, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/0123", "runs/0456", "runs/1789", "elsewhere/0999"):
        Path(name).mkdir(parents=True)
        (Path(name) / "config.json").write_text(json.dumps({"schema": 1}))
    assert complete("evaluate", "0") == ["0123", "0456"]
    assert complete("doctor", "elsewhere/") == ["elsewhere/0999"]
    assert complete("compare", "0123,0") == ["0123,0123", "0123,0456"]
    assert complete("compare", "0123", "1") == ["1789"]


def test_completion_imports_no_torch():
    code = """
import os, sys
os.environ.update(_FAVORIT_COMPLETE="complete_bash", COMP_WORDS="favorit train --preset vit", COMP_CWORD="3")
from favorit.cli import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, env=dict(os.environ)
    )
    assert "vit-64" in done.stdout.split()
    assert done.stdout.split()[-1] == "False"
