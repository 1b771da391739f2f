"""Files and folders that cannot be written are rejected before the work starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from favorit import FavoritError
from favorit.cli import console
from favorit.cli.console import check_figures, check_folders, check_outputs
from training_helpers import DATA

LONG = "x" * 252  # a temporary name in this folder is longer than 255 characters


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/x.csv", "the folder nowhere does not exist: create it first"),
        ("file/x.csv", "the folder file does not exist: create it first"),
        ("folder", "give a file name with a suffix"),
        ("x", "give a file name with a suffix"),
        ("/proc/x.csv", "cannot be written: .*: choose another place"),
        (f"{LONG}.csv", "cannot be written: File name too long"),
    ],
)
def test_file_that_cannot_be_written_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path, message):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("")
    for check in (check_outputs, check_figures):
        with pytest.raises(FavoritError, match=f"^--out {path}:? ?{message}"):
            check(out=Path(path))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("file", ": file is a file: give a folder"),
        ("file/runs", ": .*file is a file: give a folder"),
        ("/proc/runs", " cannot be written: .*: choose another place"),
        (LONG, " cannot be written: File name too long"),
    ],
)
def test_folder_that_cannot_be_written_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path, message):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(FavoritError, match=f"^--out {path}{message}"):
        check_folders(out=Path(path))


def test_read_only_file_system_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """For root, permissions do not tell: a file must be created."""

    def read_only(**options: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(options["dir"]))

    monkeypatch.setattr(console, "TemporaryFile", read_only)
    for check, path in ((check_outputs, tmp_path / "x.csv"), (check_folders, tmp_path / "a" / "b")):
        with pytest.raises(FavoritError, match=f"^--to {path} cannot be written: Read-only file system: choose"):
            check(to=path)


def test_checks_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    check_outputs(out=Path("x.csv"), other=None)
    check_figures(figure=tmp_path / "x.png")
    check_folders(out=Path("runs/deep/er"), pack=Path("."), other=None)
    assert list(tmp_path.iterdir()) == []


def test_first_run_without_permission_does_not_claim_kept_work(command, tmp_path: Path, monkeypatch):
    """The folder becomes read-only after the check."""
    mkdir = Path.mkdir

    def denied(path: Path, *arguments: Any, **options: Any) -> None:
        if "runs" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", denied)
    status, _, err = command("train", "--data", DATA, "--epochs", "1", "--out", tmp_path / "runs")
    assert status == 1
    assert err.startswith(f"favorit: {tmp_path / 'runs'}")
    assert err.endswith(": Permission denied\n")
