"""Packing of runs by command, from Python and during a study; packed runs count as done."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import favorit
from favorit import FavoritError
from favorit.cli import main
from favorit.data import load_dataset
from favorit.study import Options, Study, product, run, status
from favorit.study import plan as planning
from favorit.study.packing import pack_all
from favorit.study.runner import make_plan, prepare, states
from favorit.study.statistics import compare
from favorit.study.tasks import Ended, TaskEvent
from favorit.training.folder import RunFolder
from training_helpers import DATA, MODEL, files, finish, fit, start, tiny

BASE: dict[str, Any] = {
    "data.name": DATA,
    "train.batch_size": 16,
    "train.epochs": 2,
    **{f"model.{key}": value for key, value in MODEL.items()},
}
STUDY = Study("tiny", "Does it?", BASE, product({"train.lr": [0.01, 1e30], "seed": [0, 1]}))

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `favorit ...` in this process: exit status, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["favorit", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two complete runs, a failed run and a stopped run."""
    out = tmp_path_factory.mktemp("shelf") / "runs"
    for seed in (0, 1):
        fit(out, tiny(seed=seed))
    with pytest.raises(FavoritError):
        fit(out, tiny(train=dict(lr=1e30)))

    def stop(event: Any, _: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(tiny(seed=3), out=out, listen=stop)
    return out


@pytest.fixture
def runs(shelf, tmp_path: Path) -> Path:
    """A copy of the shelf, which a test may change."""
    return Path(shutil.copytree(shelf, tmp_path / "runs"))


def complete(folder: Path) -> list[str]:
    return sorted(favorit.runs(folder).query("status == 'complete'").id)


# The command


def test_runs_pack_packs_finished_runs_and_counts_the_others(runs, tmp_path: Path, command):
    packs = tmp_path / "results" / "runs"
    code, out, err = command("runs", "pack", runs, "--to", packs)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert sum(line.startswith("packed: ") for line in lines) == 3
    assert sum(line.startswith("unfinished: ") for line in lines) == 1
    assert lines[-1] == f"3 packed, 0 packed before, 1 unfinished, 0 broken: {runs} to {packs}"
    assert complete(packs) == complete(runs)
    listed, expected = command("runs", packs)[1], command("runs", runs)[1]
    for line in (line for line in expected.splitlines() if " stopped " not in line):
        assert re.sub(" +", " ", line) in re.sub(" +", " ", listed)


def test_second_runs_pack_writes_nothing(runs, tmp_path: Path, command):
    command("runs", "pack", runs, "--to", tmp_path / "packs")
    before = list(files(tmp_path / "packs"))
    code, out, _ = command("runs", "pack", runs, "--to", tmp_path / "packs")
    assert code == 0
    assert "0 packed, 3 packed before" in out
    assert list(files(tmp_path / "packs")) == before


def test_damaged_run_is_reported_and_the_others_are_packed(runs, tmp_path: Path, command):
    victim = complete(runs)[0]
    (runs / victim / "predictions.npz").write_bytes(b"half")
    code, out, err = command("runs", "pack", runs, "--to", tmp_path / "packs")
    assert (code, err) == (1, "")
    assert f"broken: {runs / victim / 'predictions.npz'} cannot be read" in out
    assert "2 packed, 0 packed before, 1 unfinished, 1 broken" in out
    assert not (tmp_path / "packs" / f"{victim}.zip").exists()


def test_damaged_packed_run_is_packed_again(runs, tmp_path: Path):
    packed = favorit.pack(runs / complete(runs)[0], tmp_path / "packs")
    whole = packed.path.read_bytes()
    packed.path.write_bytes(whole[:-100])
    assert favorit.pack(runs / packed.id, tmp_path / "packs").path.read_bytes() == whole


def test_packed_run_of_another_training_is_kept(runs, tmp_path: Path):
    identifier = complete(runs)[0]
    packed = favorit.pack(runs / identifier, tmp_path / "packs")
    before = packed.path.read_bytes()
    folder = RunFolder(runs / identifier)
    folder.write_result({**favorit.Run(folder.path).result, "train_seconds_per_epoch": 1.0})
    with pytest.raises(FavoritError, match=r"already holds another result of the run .*: delete that file to pack"):
        favorit.pack(folder.path, tmp_path / "packs")
    assert packed.path.read_bytes() == before


def test_run_packed_into_its_own_parent_folder_is_listed_once(runs, command):
    before = favorit.runs(runs)
    assert command("runs", "pack", runs, "--to", runs)[0] == 0
    assert favorit.runs(runs).equals(before)
    assert {each.outcome for each in pack_all(runs, runs)} == {"present", "unfinished"}


@pytest.mark.parametrize(
    "verb", [["runs", "pack", "RUNS", "--to"], ["study", "run", "quickstart", "--pack"]], ids=["runs", "study"]
)
def test_file_as_folder_for_packed_runs_is_a_one_line_error(runs, tmp_path: Path, command, verb):
    (tmp_path / "file").write_text("mine")
    code, _, err = command(*(runs if word == "RUNS" else word for word in verb), tmp_path / "file")
    file = tmp_path / "file"
    assert (code, err) == (2, f"favorit: {verb[-1]} {file}: {file} is a file: give a folder\n")


def test_unfinished_run_is_not_packed(runs, tmp_path: Path):
    (stopped,) = favorit.runs(runs).query("status == 'stopped'").id
    with pytest.raises(FavoritError, match="is stopped: only complete and failed runs are packed"):
        favorit.pack(runs / stopped, tmp_path / "packs")
    with pytest.raises(FavoritError, match="is not a run"):
        favorit.pack(runs / "nowhere", tmp_path / "packs")


@pytest.mark.parametrize("arguments", [["runs"], ["runs", "list"]])
def test_runs_lists_a_folder_with_and_without_list(runs, command, arguments):
    code, out, _ = command(*arguments, runs, "--json")
    assert code == 0
    assert len([json.loads(line) for line in out.splitlines()]) == 4


def test_runs_without_a_folder_lists_the_default_one(runs, command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs.parent)
    assert command("runs", "--json")[1] == command("runs", runs, "--json")[1]
    assert "pack" in command("runs", "--help")[1]


# Retraining


@pytest.mark.parametrize("form", ["folder", "packed"])
def test_train_with_a_run_as_config_has_the_same_identifier(runs, tmp_path: Path, command, form):
    full = favorit.Run(runs / complete(runs)[0])
    source = full.path if form == "folder" else favorit.pack(full, tmp_path / "packs").path
    code, out, _ = command("train", "--config", source, "--out", tmp_path / "again", "--json")
    assert code == 0
    printed = json.loads(out)
    assert (printed["id"], printed["test"]) == (full.id, full.result["test"])
    favorit.load(tmp_path / "again" / full.id)


@pytest.mark.parametrize("verb", [["evaluate"], ["predict"], ["doctor"]], ids=" ".join)
def test_command_printed_for_a_packed_run_trains_its_weights(
    runs, tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch, verb
):
    monkeypatch.chdir(tmp_path)
    packed = favorit.pack(runs / complete(runs)[0], "results/runs")
    shutil.rmtree(runs)
    code, _, err = command(*verb, packed.path, *(["x.png"] if verb == ["predict"] else []))
    assert (code, err.count("\n")) == (2, 1)
    retrain = err.strip().partition("train it again with favorit ")[2].split()
    assert command(*retrain)[0] == 0
    assert favorit.load(f"runs/{packed.id}").classes == ("class 0", "class 1", "class 2")


def test_train_of_a_packed_run_reports_that_it_is_complete(runs, tmp_path: Path, command):
    packed = favorit.pack(runs / complete(runs)[0], tmp_path / "packs")
    code, out, err = command("train", "--config", packed.path, "--out", packed.path.parent)
    assert (code, err) == (0, "")
    assert "already complete: nothing to train" in out
    assert f"run {packed.id} in {packed.path}" in out


@pytest.mark.parametrize("content", [b"", b"half"])
def test_damaged_packed_run_as_config_is_a_one_line_error(tmp_path: Path, command, content):
    (tmp_path / "0123456789abcdef.zip").write_bytes(content)
    code, _, err = command("train", "--config", tmp_path / "0123456789abcdef.zip", "--out", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "is damaged (" in err


# Comparing


def test_compare_is_equal_for_packed_and_full_runs(runs, tmp_path: Path):
    a, b = (runs / identifier for identifier in complete(runs))
    packed = [favorit.pack(path, tmp_path / "packs").path for path in (a, b)]
    assert (
        compare([packed[0]], [b]) == compare([a], [packed[1]]) == compare([packed[0]], [packed[1]]) == compare([a], [b])
    )


# Studies


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[TaskEvent]]:
    """A study of four points, two of which diverge, run with `pack`: the folder of runs, the folder of packed runs,
    and the events.
    """
    place = tmp_path_factory.mktemp("studied")
    events: list[TaskEvent] = []
    run(STUDY, place / "runs", pack=place / "packs", accelerator="cpu", listen=events.append)
    return place / "runs", place / "packs", events


def test_study_packs_complete_and_failed_runs(studied):
    out, packs, _ = studied
    assert favorit.runs(packs).equals(favorit.runs(out))
    assert sorted(favorit.runs(packs).status) == ["complete", "complete", "failed", "failed"]


def test_study_packs_each_run_before_its_ended_event(tmp_path: Path):
    def listen(event: TaskEvent) -> None:
        if isinstance(event, Ended):
            seen.append((tmp_path / "packs" / f"{event.task.id}.zip").exists())

    seen: list[bool] = []
    run(
        STUDY,
        tmp_path / "runs",
        pack=tmp_path / "packs",
        options=Options(only="lr=0.01*"),
        accelerator="cpu",
        listen=listen,
    )
    assert seen == [True, True]


@pytest.mark.parametrize("place", ["pack", "out"])
def test_packed_runs_count_as_done(studied, tmp_path: Path, place):
    _, packs, _ = studied
    copy = Path(shutil.copytree(packs, tmp_path / "packs"))
    before = list(files(copy))
    places = {"out": tmp_path / "new", "pack": copy} if place == "pack" else {"out": copy}
    events: list[TaskEvent] = []
    report = run(STUDY, **places, accelerator="cpu", listen=events.append)
    assert (events, len(report.results), len(report.errors), report.missing) == ([], 2, 2, {})
    assert all("failed before" in error for error in report.errors.values())
    assert [each for each in files(copy) if ".studies" not in each[0]] == [
        each for each in before if ".studies" not in each[0]
    ]


def test_status_and_plan_are_equal_for_packed_and_full_runs(studied, tmp_path: Path):
    out, packs, _ = studied
    expected = status(STUDY, out)
    assert [state.status for state in expected] == ["complete", "complete", "failed", "failed"]
    assert status(STUDY, packs) == expected
    assert status(STUDY, tmp_path, pack=packs) == expected
    assert states(make_plan(STUDY, Options()), tmp_path, packs) == expected
    assert {state.status for state in status(STUDY, tmp_path)} == {"missing"}


def test_study_packs_finished_runs_that_a_kill_left_unpacked(studied, tmp_path: Path):
    out, packs, _ = studied
    prepare(make_plan(STUDY, Options()), shutil.copytree(out, tmp_path / "runs"), tmp_path / "packs")
    assert {path.name: path.read_bytes() for path in packs.glob("*.zip")} == {
        path.name: path.read_bytes() for path in (tmp_path / "packs").glob("*.zip")
    }


def test_damaged_packed_run_fails_only_its_point(studied, tmp_path: Path):
    copy = Path(shutil.copytree(studied[1], tmp_path / "packs"))
    victim = next(state for state in status(STUDY, copy) if state.status == "complete")
    (copy / f"{victim.id}.zip").write_bytes(b"half")
    found = {state.name: state for state in status(STUDY, copy)}
    assert found.pop(victim.name).status == "damaged"
    assert sorted(state.status for state in found.values()) == ["complete", "failed", "failed"]
    report = run(STUDY, tmp_path / "runs", pack=copy, accelerator="cpu")
    assert "is damaged (File is not a zip file)" in report.errors[victim.name]
    assert (len(report.results), len(report.errors)) == (1, 3)


def test_run_that_cannot_be_packed_is_reported_and_the_others_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, write: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("favorit.study.packing.write_atomically", full)
    report = run(STUDY, tmp_path / "runs", pack=tmp_path / "packs", options=Options(only="lr=0.01*"), accelerator="cpu")
    assert len(report.results) == 2
    assert [reason.endswith("No space left on device") for reason in report.unpacked.values()] == [True, True]


def test_study_run_packs_runs_and_status_reads_them(tmp_path: Path, command):
    path = tmp_path / "tiny.py"
    path.write_text(
        f"from favorit.study import Study, product\nSTUDY = Study('tiny', 'Does it?', {BASE!r}, product(seed=[0, 1]))\n"
    )
    places = ("--out", tmp_path / "runs", "--pack", tmp_path / "packs")
    code, _, errors = finish(start("-m", "favorit", "study", "run", path, *places, "--accelerator", "cpu"))
    assert (code, errors) == (0, "")
    shutil.rmtree(tmp_path / "runs")
    code, out, _ = command("study", "run", path, *places)
    assert code == 0
    assert "2 points: 2 done, 0 to do" in out
    assert "2 complete" in command("study", "status", path, "--runs", tmp_path / "packs")[1]
    assert "2 complete" in command("study", "status", path, *places)[1]
    assert "2 complete" in command("study", "plan", path, *places, "--no-estimate")[1]
    assert "2 missing" in command("study", "status", path, "--out", tmp_path / "runs")[1]


def test_status_finds_packed_runs_without_their_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The digest of the data set comes from the runs."""
    base = {"data.name": "mnist", **{f"model.{key}": value for key, value in MODEL.items()}, "train.epochs": 1}
    study = Study("mine", "?", base, product(seed=[0, 1]))
    pictures = load_dataset("synthetic(size=28, channels=1, train=640, test=32)")
    monkeypatch.setattr(planning, "_data", lambda name, data_dir, fetch: (pictures, None))
    config = study.configs()["seed=0"]
    done, _ = fit(tmp_path / "runs", config, read=lambda name, data_dir: pictures)
    favorit.pack(done, tmp_path / "packed")
    monkeypatch.undo()
    monkeypatch.setenv("FAVORIT_DATA", str(tmp_path / "nothing"))
    found = {state.name: (state.status, state.id) for state in status(study, tmp_path / "packed", options=Options())}
    assert found["seed=0"] == ("complete", done.id)
    assert found["seed=1"][0] == "missing"
