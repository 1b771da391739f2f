"""`favorit runs`: optional columns of its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
