"""Run folders that are incomplete, damaged, locked or on a full disk: one-line errors, no loss of complete data."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import favorit
from favorit import FavoritError
from favorit.training import Checkpoint, Epoch, Step
from favorit.training.engine import Training
from favorit.training.folder import RunFolder
from favorit.training.inference import evaluate
from training_helpers import (
    LIVELY,
    Outcome,
    assert_bit_equal,
    fit,
    forget_digests,
    interrupt,
    raises_line,
    start,
    tiny,
    untimed,
)

CONFIG = tiny()


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> favorit.Run:
    return fit(tmp_path_factory.mktemp("complete"), CONFIG)[0]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one run, which was interrupted in its second epoch."""
    out = tmp_path_factory.mktemp("half")
    interrupt(out, CONFIG)
    return out


@pytest.fixture
def finished(complete, tmp_path: Path) -> favorit.Run:
    """A copy of the complete run, which the test may damage."""
    return favorit.Run(Path(shutil.copytree(complete.path, tmp_path / "runs" / complete.id)))


@pytest.fixture
def folder(half, tmp_path: Path) -> Path:
    """A copy of the interrupted run, which the test may damage."""
    (run,) = half.iterdir()
    return Path(shutil.copytree(run, tmp_path / "runs" / run.name))


def resumes(folder: Path, complete: favorit.Run, first_step: int) -> None:
    """Asserts that training again starts at step `first_step` of twelve and ends bit-equal to the complete run."""
    run, events = fit(folder.parent, CONFIG)
    assert [event.epoch * 6 + event.step for event in events if isinstance(event, Step)] == list(range(first_step, 13))
    assert_bit_equal(Outcome.of(run), Outcome.of(complete))


# Incomplete.


def test_interrupted_run_resumes_from_its_checkpoint(folder, complete):
    resumes(folder, complete, 9)


def test_empty_folder_starts_the_run(tmp_path: Path, complete):
    folder = tmp_path / "runs" / complete.id
    folder.mkdir(parents=True)
    resumes(folder, complete, 1)


def test_missing_config_of_an_unfinished_run_is_rewritten(folder, complete):
    (folder / "config.json").unlink()
    resumes(folder, complete, 9)
    written, expected = (RunFolder(path).config() for path in (folder, complete.path))
    assert {**written, "started": None} == {**expected, "started": None}


def test_damaged_config_of_an_unfinished_run_is_rewritten(folder, complete):
    (folder / "config.json").write_text("{")
    resumes(folder, complete, 9)


def test_truncated_last_record_is_ignored(folder, complete):
    with open(folder / "epochs.jsonl", "a") as file:
        file.write('{"epoch": 1, "train_lo')
    assert len(RunFolder(folder).epochs()) == 1
    resumes(folder, complete, 9)


def test_records_after_the_checkpoint_are_removed(folder, complete):
    with open(folder / "epochs.jsonl", "a") as file:
        file.write(json.dumps({**RunFolder(folder).epochs()[0], "epoch": 1}) + "\n")
    resumes(folder, complete, 9)


def test_partial_files_of_killed_processes_are_ignored_and_removed(folder, complete):
    shutil.copytree(folder / "checkpoint-8", folder / "writing-11")
    (folder / "writing-11" / "state.pt").unlink()
    (folder / "writing-9").mkdir()
    (folder / ".best.safetensors.123").write_bytes(b"half")
    (folder / ".result.json.45").write_text("{")
    resumes(folder, complete, 9)
    assert {path.name for path in folder.iterdir()} == {path.name for path in complete.path.iterdir()}


def test_missing_checkpoint_restarts_the_run(folder, complete):
    shutil.rmtree(folder / "checkpoint-8")
    resumes(folder, complete, 1)


def test_newer_of_two_checkpoints_is_used(folder, complete):
    older = folder / "checkpoint-7"
    older.mkdir()
    (older / "state.pt").write_bytes(b"half removed")
    resumes(folder, complete, 9)


# Damaged.

JUNK = {
    "cut": "{",
    "empty": "",
    "bytes": b"\xff\xfe\x00",
    "a list": "[1, 2]",
    "a number": "3",
    "no schema": "{}",
    "schema of text": '{"schema": "x"}',
    "schema only": '{"schema": 1}',
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_damaged_json_is_named(finished, name, junk):
    path = finished.path / name
    path.write_bytes(junk if isinstance(junk, bytes) else junk.encode())
    words = (path, "is damaged", f"delete {finished.path} and train again")
    if name == "config.json":
        raises_line(lambda: favorit.load(finished), *words)
        raises_line(lambda: evaluate(finished.path), *words)
        raises_line(lambda: finished.config, *words)
    else:
        raises_line(lambda: finished.result, *words)
        raises_line(lambda: fit(finished.path.parent, CONFIG), *words)


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_files_of_a_newer_version_ask_for_an_upgrade(finished, name):
    path = finished.path / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    action = (lambda: favorit.load(finished)) if name == "config.json" else (lambda: finished.result)
    raises_line(action, path, "newer favorit (schema 2, this one reads 1)", "upgrade")


@pytest.mark.parametrize("text", ["{\n", "\x00\n", '{"epoch": 0\n{"epoch": 1}\n'])
def test_damaged_record_before_the_last_is_named(folder, text):
    (folder / "epochs.jsonl").write_text(text + '{"epoch": 1}\n')
    raises_line(
        lambda: fit(folder.parent, CONFIG), folder / "epochs.jsonl", "is damaged", f"delete {folder} and train again"
    )


def test_fewer_records_than_the_checkpoint_are_damage(folder):
    """A run resumed from there would end with the wrong number of epochs."""
    (folder / "epochs.jsonl").write_text("")
    raises_line(
        lambda: fit(folder.parent, CONFIG),
        folder / "epochs.jsonl",
        "0 records, but the checkpoint was written after 1 epochs",
        "train again",
    )


@pytest.mark.parametrize(("status", "missing"), [("complete", "epochs, test"), ("failed", "error")])
def test_result_without_the_field_of_its_status_is_damage(finished, status, missing):
    path = finished.path / "result.json"
    path.write_text(json.dumps({"schema": 1, "status": status}))
    raises_line(lambda: fit(finished.path.parent, CONFIG), path, f"is damaged ({missing}", "missing")


def test_config_without_the_data_section_fields_is_damage(finished):
    path = finished.path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": {"digest": "0"}}))
    raises_line(
        lambda: favorit.load(finished),
        path,
        "is damaged (data.classes, data.mean, data.std, data.image_size, data.channels are missing)",
    )


def test_result_of_an_unfinished_run_is_an_error(folder):
    raises_line(
        lambda: favorit.Run(folder).result, folder, "is not finished", "train the same configuration again to resume it"
    )


def test_missing_weights_are_named(finished):
    (finished.path / "best.safetensors").unlink()
    raises_line(
        lambda: favorit.load(finished),
        finished.path / "best.safetensors",
        "is missing",
        f"delete {finished.path} and train again",
    )


def test_truncated_weights_are_named(finished):
    forget_digests(finished.path)
    path = finished.path / "best.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    raises_line(lambda: favorit.load(finished), path, "damaged", f"delete {finished.path}")


def test_weights_of_another_model_are_named(finished, tmp_path: Path):
    forget_digests(finished.path)
    other, _ = fit(tmp_path / "other", tiny(model=dict(dim=16), train=dict(epochs=1)))
    shutil.copy(other.path / "best.safetensors", finished.path)
    raises_line(
        lambda: favorit.load(finished), finished.path / "best.safetensors", "does not fit this model", "size mismatch"
    )


def test_path_without_a_run_is_named(tmp_path: Path):
    raises_line(lambda: favorit.load(tmp_path / "nothing"), tmp_path / "nothing", "is not a run", "favorit runs")
    (tmp_path / "file").write_text("")
    raises_line(lambda: favorit.load(tmp_path / "file"), tmp_path / "file", "is not a run")


# Checkpoints.


def test_checkpoint_of_another_model_is_named(folder, tmp_path: Path):
    other = interrupt(tmp_path / "other", tiny(model=dict(mlp_dim=24)))
    shutil.rmtree(folder / "checkpoint-8")
    shutil.copytree(other / "checkpoint-8", folder / "checkpoint-8")
    raises_line(
        lambda: fit(folder.parent, CONFIG),
        folder / "checkpoint-8" / "model.safetensors",
        "does not fit this model",
        "delete",
    )


def test_checkpoint_of_another_format_is_named(folder):
    forget_digests(folder)
    path = folder / "checkpoint-8" / "state.pt"
    torch.save({**torch.load(path, weights_only=True), "format": 2}, path)
    raises_line(
        lambda: fit(folder.parent, CONFIG),
        folder / "checkpoint-8",
        "format 2, but this version reads 1",
        "delete that folder",
    )


def test_checkpoint_of_another_optimizer_is_named(folder, tmp_path: Path):
    forget_digests(folder)
    other = interrupt(tmp_path / "other", tiny(train=dict(optimizer="muon")))
    shutil.copy(other / "checkpoint-8" / "state.pt", folder / "checkpoint-8" / "state.pt")
    raises_line(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", "cannot resume from", "delete that folder")


@pytest.mark.parametrize("has_digests", [True, False])
@pytest.mark.parametrize("missing", ["state.pt", "model.safetensors"])
def test_checkpoint_with_a_missing_file_is_named(folder, missing, has_digests):
    if not has_digests:
        forget_digests(folder)
    (folder / "checkpoint-8" / missing).unlink()
    raises_line(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", missing, "delete")


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps([1, 2])], ids=["empty", "junk", "a list"])
def test_damaged_checkpoint_state_is_named(folder, content):
    forget_digests(folder)
    (folder / "checkpoint-8" / "state.pt").write_bytes(content)
    raises_line(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", "cannot resume from", "delete that folder")


@pytest.mark.parametrize("value", [[1, 2], {"format": 1}, {"format": 1, "progress": {}, "states": [[], []]}], ids=str)
def test_checkpoint_state_of_the_wrong_type_is_named(folder, value):
    forget_digests(folder)
    torch.save(value, folder / "checkpoint-8" / "state.pt")
    raises_line(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", "cannot resume from")


class Malicious:
    """Creates a folder if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize(
    "write", [lambda value, path: torch.save(value, path), lambda value, path: path.write_bytes(pickle.dumps(value))]
)
def test_pickles_are_not_executed(folder, tmp_path: Path, write):
    forget_digests(folder)
    trap = tmp_path / "sprung"
    write({"format": 1, "progress": Malicious(trap), "states": []}, folder / "checkpoint-8" / "state.pt")
    raises_line(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", "cannot resume from", "delete that folder")
    assert not trap.exists()
    with suppress(RuntimeError):  # torch rejects a plain pickle file, but only after executing it
        torch.load(folder / "checkpoint-8" / "state.pt", weights_only=False)
    assert trap.exists(), "invalid test case: the pickle does nothing"


def test_deleting_the_folder_in_the_message_repairs_the_run(folder, complete):
    (folder / "checkpoint-8" / "state.pt").write_bytes(b"junk")
    raises_line(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8")
    shutil.rmtree(folder / "checkpoint-8")
    resumes(folder, complete, 1)


# Full disk.


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Limits the size of files, as a full disk does. safetensors, torch and Python then raise different errors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def complete_checkpoints(folder: Path) -> list[str]:
    found = RunFolder(folder).checkpoints()
    for path in found:
        load_file(path / "model.safetensors")
        torch.load(path / "state.pt", weights_only=True)
    return [path.name for path in found]


@pytest.mark.parametrize("size", [0, 5000, 12000])
def test_write_error_is_an_oserror_and_the_run_resumes(folder, complete, size):
    """5000 bytes are enough for config.json but not for weights, 12000 for weights but not for the optimizer."""
    assert (folder / "checkpoint-8" / "model.safetensors").stat().st_size in range(5001, 12000)
    assert (folder / "checkpoint-8" / "state.pt").stat().st_size > 12000
    with no_file_longer_than(size), pytest.raises(OSError, match="File too large"):
        fit(folder.parent, CONFIG, checkpoint_seconds=0)
    assert complete_checkpoints(folder) == ["checkpoint-8"]
    assert not list(folder.glob("writing-*"))
    resumes(folder, complete, 9)


@pytest.mark.parametrize("refused", [1, 2, 5, 8, 11, 14, 16, 17])
def test_full_disk_at_any_write_loses_nothing(tmp_path: Path, monkeypatch, refused):
    """The Nth call of os.fsync raises ENOSPC: config, record, weights, checkpoints, predictions, result."""
    config = tiny(**LIVELY)
    whole, _ = fit(tmp_path / "whole", config)
    calls: list[int] = []
    sync = os.fsync

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        fit(tmp_path / "runs", config)
    (folder,) = (tmp_path / "runs").iterdir()
    complete_checkpoints(folder)
    assert not list(folder.glob("writing-*"))
    assert not list(folder.glob(".*"))
    assert not (folder / "result.json").exists()
    run, _ = fit(tmp_path / "runs", config)
    assert_bit_equal(Outcome.of(run), Outcome.of(whole))


def test_output_that_is_a_file_or_cannot_be_written_is_an_error(tmp_path: Path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    raises_line(lambda: fit(tmp_path / "runs", CONFIG), tmp_path / "runs", "is a file: give a folder for runs")
    raises_line(lambda: favorit.runs(tmp_path / "runs"), tmp_path / "runs", "is a file, not a folder of runs")
    with pytest.raises(OSError, match="none"):
        fit(Path("/proc/none"), CONFIG)


# Concurrent processes.

HOLDER = """
import sys
from pathlib import Path
from favorit.training.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_process_on_the_same_run_is_rejected(folder, complete):
    before = {path.name for path in folder.iterdir()}
    process = start("-c", HOLDER, folder, stdin=-1)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        raises_line(
            lambda: fit(folder.parent, CONFIG), folder, "is being trained by another process", "wait for it or stop it"
        )
        assert {path.name for path in folder.iterdir()} == before
        assert favorit.runs(folder.parent).status.tolist() == ["training"]
        assert favorit.runs(folder.parent).epochs.tolist() == [1]
    finally:
        process.kill()
        process.communicate()
    resumes(folder, complete, 9)  # the system releases the lock of a dead process


def test_trainer_waits_for_a_reader_lock_without_timeout(folder, complete, monkeypatch):
    """`favorit runs` holds a shared lock while it reads a run, and may be suspended while it does."""
    from favorit import locks

    original = locks._acquire_from_readers
    with open(folder / "lock") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        release = Timer(1.0, lambda: fcntl.flock(reader, fcntl.LOCK_UN))

        def lock(file: Any) -> bool:
            release.start()
            return original(file)

        monkeypatch.setattr(locks, "_acquire_from_readers", lock)
        resumes(folder, complete, 9)
        release.join()


def test_lock_is_released_after_a_failure(folder):
    (folder / "checkpoint-8" / "state.pt").write_bytes(b"junk")
    for _ in range(2):
        raises_line(lambda: fit(folder.parent, CONFIG), "cannot resume from")


def test_configuration_that_cannot_be_built_leaves_no_run(tmp_path: Path):
    for config in (
        tiny(train=dict(optimizer="adamm")),
        tiny(data=dict(folds=3, fold=3)),
        tiny(train=dict(drop_last=True, batch_size=99)),
    ):
        with pytest.raises(FavoritError):
            fit(tmp_path, config)
    assert favorit.runs(tmp_path).empty


def test_damaged_ema_weights_are_named(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(train=dict(ema=0.5, epochs=1)))
    forget_digests(run.path)
    save_file({"x": torch.zeros(1)}, run.path / "best-ema.safetensors")
    raises_line(lambda: favorit.load(run), run.path / "best-ema.safetensors", "does not fit this model")


def test_checkpoints_are_written_at_the_configured_interval(tmp_path: Path, monkeypatch):
    """The fake clock advances one second at each call. An interval of 4 seconds then means every fourth step."""
    from favorit.training import engine

    seconds = iter(range(10_000))
    monkeypatch.setattr(engine.time, "monotonic", lambda: float(next(seconds)))
    saved: list[int] = []
    original = Training._save

    def save(self: Training) -> None:
        saved.append(self.progress.step)
        original(self)

    monkeypatch.setattr(Training, "_save", save)
    _, events = fit(tmp_path, tiny(train=dict(epochs=1, batch_size=8)), checkpoint_seconds=4)
    assert [event.step for event in events if isinstance(event, Checkpoint)] == saved[:-1] == [4, 8]
    assert saved[-1] == 11
    assert sum(isinstance(event, Epoch) for event in events) == 1


def test_epoch_records_are_read_as_written(complete):
    assert RunFolder(complete.path).epochs() == complete.epochs
    assert [record["epoch"] for record in untimed(complete)] == [0, 1]
