"""`favorit runs`: optional columns of its table, conditions and order."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest

from favorit import FavoritError
from favorit.cli.runs import app
from training_helpers import fit, tiny


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    app(["list", *arguments], standalone_mode=False)
    return capsys.readouterr().out


def test_runs_shows_flags_and_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fit(tmp_path, tiny(train=dict(epochs=1, watch="test"), scale="small"))
    fit(tmp_path, tiny(train=dict(epochs=1)))
    title, *lines = listed(capsys, str(tmp_path)).splitlines()
    assert "best test (test-selected)" in title
    assert sorted(line.split()[-1] == "watched" for line in lines) == [False, True]
    assert sum("small" in line for line in lines) == 1


def test_runs_without_flags_or_scale_omits_these_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fit(tmp_path, tiny(train=dict(epochs=1)))
    title = listed(capsys, str(tmp_path)).splitlines()[0]
    assert not {"flags", "scale", "test-selected"} & set(title.replace("(", " ").replace(")", " ").split())


def test_runs_omits_times_of_runs_that_shared_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fit(tmp_path, tiny(train=dict(epochs=1)), workers=2)
    assert "s/epoch" not in listed(capsys, str(tmp_path)).splitlines()[0]
    row = json.loads(listed(capsys, str(tmp_path), "--json"))
    assert row["had_machine_alone"] is False
    assert row["train_seconds_per_epoch"] > 0, "the JSON keeps the time"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shelf")
    for seed in (0, 1, 2):
        study = "thesis" if seed else None
        fit(out, tiny(train=dict(epochs=1), seed=seed), name=f"point seed={seed}", study=study)
    return out


def test_runs_shows_study_name_and_date(shelf: Path, capsys: pytest.CaptureFixture[str]):
    title, *lines = listed(capsys, str(shelf)).splitlines()
    assert title.split()[:5] == ["run", "status", "study", "name", "date"]
    date = json.loads(listed(capsys, str(shelf), "--json").splitlines()[0])["date"]
    assert sum("thesis" in line for line in lines) == 2
    assert sum("point seed=0" in line and date[:10] in line for line in lines) == 1


def test_runs_selects_and_sorts(shelf: Path, capsys: pytest.CaptureFixture[str]):
    def seeds(*arguments: str) -> list[str]:
        table = csv.DictReader(io.StringIO(listed(capsys, str(shelf), "--csv", *arguments)))
        return [row["seed"] for row in table]

    assert seeds("--study", "thesis", "--sort", "seed") == ["1", "2"]
    assert seeds("--study", "the*", "--sort", "seed", "--reverse") == ["2", "1"]
    assert seeds("--where", "seed>=1", "--where", "name=point*", "--where", "seed!=2") == ["1"]
    assert listed(capsys, str(shelf), "--where", "seed=7") == f"none of the 3 runs in {shelf} meets the conditions\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--study", "thesi"], "unknown study of these runs 'thesi': did you mean 'thesis'? known: thesis"),
        (["--sort", "tset"], "unknown field 'tset' of a run: did you mean 'test'?"),
        (["--reverse"], "--reverse needs --sort FIELD"),
    ],
)
def test_wrong_selection_is_rejected(shelf: Path, arguments: list[str], message: str):
    with pytest.raises(FavoritError, match=re.escape(message)):
        app(["list", str(shelf), *arguments], standalone_mode=False)


def test_missing_folder_is_rejected_but_the_default_one_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert listed(capsys).startswith("no runs in runs: 'favorit train --out runs' trains one")
    with pytest.raises(FavoritError, match=r"^nope does not exist: give a folder of runs"):
        app(["list", "nope"], standalone_mode=False)


def test_narrow_terminal_shows_whole_names(shelf: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    _, *lines = listed(capsys, str(shelf)).splitlines()
    assert sum("point seed=" in line for line in lines) == 3
    assert max(map(len, lines[:3])) <= 80
