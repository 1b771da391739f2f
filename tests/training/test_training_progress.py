"""`favorit.train` shows its progress on stderr: lines in piped output and notebooks, and a bar on a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import favorit
from favorit.training import progress
from training_helpers import finish, plain, start, tiny

EPOCH = "epoch   1/2   train"


def test_train_prints_a_line_for_each_epoch_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = favorit.train(plain(), out=tmp_path, accelerator="cpu")
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[:11] for line in err.splitlines()] == ["epoch   1/2", "epoch   2/2"]
    assert favorit.train(plain(), out=tmp_path, accelerator="cpu") == run
    assert capsys.readouterr().err == "already complete: nothing to train\n"


@pytest.mark.parametrize("variable", [None, "LOCAL_RANK", "RANK"])
def test_train_is_silent_without_progress_and_on_other_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    favorit.train(tiny(), out=tmp_path, accelerator="cpu", progress=variable is not None)
    assert capsys.readouterr() == ("", "")


def test_listener_of_the_caller_is_called_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    favorit.train(tiny(), out=tmp_path, accelerator="cpu", listen=lambda event, _: seen.append(type(event).__name__))
    assert seen.count("Epoch") == 2
    assert EPOCH in capsys.readouterr().err


def test_listener_still_prunes(tmp_path: Path) -> None:
    run = favorit.train(tiny(), out=tmp_path, accelerator="cpu", listen=lambda event, _: hasattr(event, "train_loss"))
    assert run.result["status"] == "pruned"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_terminal_has_a_bar_and_piped_output_has_none(tmp_path: Path, is_terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=150)
    with progress.training_progress(console) as show:
        favorit.train(tiny(), out=tmp_path, accelerator="cpu", listen=show, progress=False)
    assert EPOCH in out.getvalue()
    assert ("images/s" in out.getvalue()) == is_terminal


def test_notebook_displays_a_line_for_each_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich shows text in a notebook through IPython, which is not installed here."""
    shown: list[str] = []
    notebook = SimpleNamespace(display=lambda renderable: shown.append(renderable.text))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=notebook))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    with progress.training_progress(Console(force_jupyter=True, width=150)) as show:
        favorit.train(tiny(), out=tmp_path, accelerator="cpu", listen=show, progress=False)
    assert [text[:11] for text in shown] == ["epoch   1/2", "epoch   2/2"]


def test_long_epoch_prints_lines_about_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "STEP_INTERVAL", 0.0)
    out = io.StringIO()
    with progress.training_progress(Console(file=out, force_terminal=False, width=150)) as show:
        favorit.train(tiny(), out=tmp_path, accelerator="cpu", listen=show, progress=False)
    assert "epoch 1/2  step 2/6  loss" in out.getvalue()


def test_workers_of_a_study_show_no_progress_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from favorit import study\n"
        "if __name__ == '__main__':\n"
        "    points = study.product({'seed': [0]})\n"
        f"    base = {{'data.name': {plain()['data']['name']!r}, 'model.dim': 8, 'train.epochs': 1}}\n"
        "    print(study.run(study.Study('quiet', '?', base, points), out='runs'))\n"
    )
    status, out, err = finish(start(script, cwd=tmp_path))
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "<Report of quiet: 1 of 1 points done>"
