"""Storages of a search, and the errors of storages that cannot be used."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from favorit import FavoritError
from favorit.tuning.storage import hide_password
from tune_helpers import search, started


def test_search_has_the_same_trials_in_a_journal_and_a_database(tmp_path: Path):
    storage = f"journal:{tmp_path / 'kept' / 'study.log'}"
    two, _ = search(tmp_path, storage=storage, trials=2)
    assert not (tmp_path / "tune.db").exists()
    three, events = search(tmp_path, storage=storage)
    assert started(events) == [2]
    assert three.trials[:2] == two.trials
    in_sqlite, _ = search(tmp_path, storage=f"sqlite:///{tmp_path / 'elsewhere.db'}")
    assert in_sqlite.trials == three.trials, "the runs are on disk already"


def test_incomplete_last_line_of_a_journal_is_removed(tmp_path: Path):
    """A full disk leaves such a line."""
    file = tmp_path / "study.log"
    search(tmp_path, storage=f"journal:{file}", trials=1)
    whole = file.read_text()
    file.write_text(whole + '{"op_code": 8, "trial')
    result, _ = search(tmp_path, storage=f"journal:{file}", trials=2)
    assert [trial.state for trial in result.trials] == ["complete"] * 2
    assert [json.loads(line) for line in file.read_text().splitlines()]
    assert file.read_text().startswith(whole)


URL = "postgresql://me:se:cr@t@127.0.0.1:1/tuning"


@pytest.mark.parametrize(
    "url",
    [URL, URL.replace("postgresql", "postgres"), "postgresql:///tuning?host=127.0.0.1&port=1&user=me&password=se:cr@t"],
)
def test_unreachable_database_is_one_line_without_the_password(tmp_path: Path, url):
    start = time.monotonic()
    with pytest.raises(FavoritError, match=r"the storage postgres.* cannot be used: .*refused") as error:
        search(tmp_path / "out", storage=url)
    assert time.monotonic() - start < 30
    assert "\n" not in str(error.value)
    assert "cr@t" not in str(error.value)
    assert "***" in str(error.value)
    assert not list((tmp_path / "out").glob("*/config.json"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/db", "postgresql://me:***@host:5432/db"),
        (
            "postgresql://me@host/db?password=secret&sslmode=require",
            "postgresql://me@host/db?password=***&sslmode=require",
        ),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:///a.db", "sqlite:///a.db"),
    ],
)
def test_hide_password_replaces_the_password_with_stars(url, shown):
    assert hide_password(url) == shown


def test_file_that_is_not_a_database_is_an_error(tmp_path: Path):
    (tmp_path / "tune.db").write_text("not a database, and long enough to have a header " * 9)
    with pytest.raises(FavoritError, match=r"tune\.db cannot be used: file is not a database"):
        search(tmp_path, storage=None)


def test_missing_driver_names_the_extra(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(FavoritError, match=r"psycopg: pip install 'favorit\[tune-postgresql\]'"):
        search(tmp_path, storage="postgresql://me@127.0.0.1:1/tuning")


def test_missing_optuna_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("favorit.tuning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FavoritError, match=r"optuna: pip install 'favorit\[tune\]'"):
        import favorit.tuning  # noqa: F401
