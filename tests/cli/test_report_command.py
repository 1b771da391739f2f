"""`favorit report`: what it prints, writes and refuses."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import pytest

from favorit import demo
from make_runs import make_run, make_study
from training_helpers import tiny


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a folder `runs`."""
    make_study(tmp_path / "runs", "quickstart", {"layout=softmax": [0.5], "layout=uniform": [0.4]}, curve=[0.25, 0.5])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_report_ends_with_the_path_of_the_page(command, place: Path):
    status, out, err = command("report")
    assert (status, err) == (0, "")
    assert out.splitlines() == ["2 runs, 10 files", "report/index.html"]
    assert len([path for path in (place / "report").rglob("*") if path.is_file()]) == 10


def test_report_shows_the_named_studies_only(command, place: Path):
    make_run(place / "runs", tiny(), name="one", study="thesis")
    assert command("report", "thesis", "--out", "one")[0] == 0
    assert [path.name for path in (place / "one").iterdir() if path.is_dir()] == ["thesis-published-runs"]
    assert command("report", "--out", "all", "--scale", "published")[0] == 0
    assert len([path for path in (place / "all").iterdir() if path.is_dir()]) == 2


def test_open_shows_the_page_in_the_browser(command, place: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)))
    status, _, err = command("report", "--open")
    assert (status, opened) == (0, [(place / "report" / "index.html").as_uri()])
    assert err == "no browser found: open the file yourself\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "report --runs empty",
            "empty has no runs: train some first, for example with 'favorit study run quickstart",
        ),
        (
            "report hybrids --runs none",
            "none does not exist: train some first, for example with 'favorit study run",
        ),
        ("report --runs text.txt", "text.txt is a file, not a folder of runs"),
        ("report quickstat", "'quickstat': did you mean 'quickstart'?"),
        ("report thesis.py", "thesis.py"),
        ("report --scale smal", "'smal': known: published"),
        ("report --out text.txt", "--out text.txt: text.txt is a file: give a folder"),
        ("report --out text.txt/report", "text.txt is a file: give a folder"),
        ("report --out /proc/report", "--out /proc/report cannot be written"),
    ],
)
def test_mistake_is_one_line(command, place: Path, arguments: str, words: str):
    (place / "empty").mkdir()
    (place / "text.txt").write_text("not a folder")
    status, out, err = command(*arguments.split())
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert words in err
    assert not (place / "report").exists()


def test_demo_trains_and_then_writes_the_report_of_its_runs(monkeypatch: pytest.MonkeyPatch):
    calls: list[list[str]] = []

    def main() -> None:
        calls.append(sys.argv[1:])
        sys.exit(0)

    monkeypatch.setattr(sys, "argv", ["favorit"])
    monkeypatch.setattr(demo, "main", main)
    demo.demo()
    trained, reported = calls
    assert trained == ["study", "run", "quickstart", "--out", "runs/demo"]
    assert reported == ["report", "quickstart", "--runs", "runs/demo", "--out", "build/demo"]


def test_demo_that_cannot_train_writes_no_report(monkeypatch: pytest.MonkeyPatch):
    calls: list[list[str]] = []

    def main() -> None:
        calls.append(sys.argv[1:])
        sys.exit(3)

    monkeypatch.setattr(sys, "argv", ["favorit"])
    monkeypatch.setattr(demo, "main", main)
    with pytest.raises(SystemExit) as end:
        demo.demo()
    assert (end.value.code, len(calls)) == (3, 1)
