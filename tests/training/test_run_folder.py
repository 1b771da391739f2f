"""A run folder that is half written, damaged, another's or full: one clear line, and nothing lost that was complete."""

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
from favorit.training.inference import evaluate_run
from training_helpers import LIVELY, Outcome, assert_bit_equal, fit, start, tiny, untimed

CONFIG = tiny()


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> favorit.Run:
    return fit(tmp_path_factory.mktemp("complete"), CONFIG)[0]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of a run that was interrupted in its second epoch."""
    out = tmp_path_factory.mktemp("half")
    interrupt(out, CONFIG)
    return out


def interrupt(out: Path, config: favorit.RunConfig, step: int = 8) -> Path:
    def listen(event: Any, _: Any) -> None:
        if isinstance(event, Checkpoint) and event.step == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(config, out=out, listen=listen, checkpoint_seconds=0)
    (folder,) = out.iterdir()
    return folder


@pytest.fixture
def finished(complete, tmp_path: Path) -> favorit.Run:
    """A copy to damage."""
    return favorit.Run(Path(shutil.copytree(complete.path, tmp_path / "runs" / complete.id)))


@pytest.fixture
def folder(half, tmp_path: Path) -> Path:
    """A copy to damage, of the run in its second epoch."""
    (run,) = half.iterdir()
    return Path(shutil.copytree(run, tmp_path / "runs" / run.name))


def goes_on(folder: Path, complete: favorit.Run, first_step: int) -> None:
    """The same call finishes the run, from that step of the twelve on."""
    run, events = fit(folder.parent, CONFIG)
    assert [event.epoch * 6 + event.step for event in events if isinstance(event, Step)] == list(range(first_step, 13))
    assert_bit_equal(Outcome.of(run), Outcome.of(complete))


def says(action: Any, *words: str | Path) -> str:
    """A FavoritError of one line with these words."""
    with pytest.raises(FavoritError) as error:
        action()
    message = str(error.value)
    assert "\n" not in message
    missing = [str(word) for word in words if str(word) not in message]
    assert missing == [], message
    return message


# Half written.


def test_as_it_was_interrupted_it_goes_on(folder, complete):
    goes_on(folder, complete, 9)


def test_a_folder_with_nothing_in_it_is_a_run_that_begins(tmp_path: Path, complete):
    folder = tmp_path / "runs" / complete.id
    folder.mkdir(parents=True)
    goes_on(folder, complete, 1)


def test_without_config_it_goes_on_and_has_one_again(folder, complete):
    (folder / "config.json").unlink()
    goes_on(folder, complete, 9)
    assert RunFolder(folder).config() == RunFolder(complete.path).config()


def test_a_damaged_config_of_an_unfinished_run_is_written_anew(folder, complete):
    (folder / "config.json").write_text("{")
    goes_on(folder, complete, 9)


def test_a_record_cut_short_does_not_count(folder, complete):
    with open(folder / "epochs.jsonl", "a") as file:
        file.write('{"epoch": 1, "train_lo')
    assert len(RunFolder(folder).epochs()) == 1
    goes_on(folder, complete, 9)


def test_records_that_the_checkpoint_does_not_know_of_are_cut(folder, complete):
    with open(folder / "epochs.jsonl", "a") as file:
        file.write(json.dumps({"epoch": 1, "train_loss": 0.0, "best": True}) + "\n")
    goes_on(folder, complete, 9)


def test_what_killed_processes_left_half_written_is_ignored_and_removed(folder, complete):
    shutil.copytree(folder / "checkpoint-8", folder / "writing-11")
    (folder / "writing-11" / "state.pt").unlink()
    (folder / "writing-9").mkdir()
    (folder / ".best.safetensors.123").write_bytes(b"half")
    (folder / ".result.json.45").write_text("{")
    goes_on(folder, complete, 9)
    assert {path.name for path in folder.iterdir()} == {path.name for path in complete.path.iterdir()}


def test_without_a_checkpoint_it_begins_again(folder, complete):
    shutil.rmtree(folder / "checkpoint-8")
    goes_on(folder, complete, 1)


def test_of_two_checkpoints_the_newer_counts(folder, complete):
    older = folder / "checkpoint-7"
    older.mkdir()
    (older / "state.pt").write_bytes(b"half removed")
    goes_on(folder, complete, 9)


# Damaged.

JUNK = {
    "cut": "{",
    "empty": "",
    "bytes": b"\xff\xfe\x00",
    "a list": "[1, 2]",
    "a number": "3",
    "no schema": "{}",
    "schema of text": '{"schema": "x"}',
    "nothing else": '{"schema": 1}',
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_damaged_json_is_named(finished, name, junk):
    path = finished.path / name
    path.write_bytes(junk if isinstance(junk, bytes) else junk.encode())
    words = (path, "is damaged", f"delete {finished.path} and train again")
    if name == "config.json":
        says(lambda: favorit.load(finished), *words)
        says(lambda: evaluate_run(finished.path), *words)
        says(lambda: finished.config, *words)
    else:
        says(lambda: finished.result, *words)
        says(lambda: fit(finished.path.parent, CONFIG), *words)


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_files_of_a_newer_version_ask_for_an_upgrade(finished, name):
    path = finished.path / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    action = (lambda: favorit.load(finished)) if name == "config.json" else (lambda: finished.result)
    says(action, path, "newer favorit (schema 2, this one reads 1)", "upgrade")


@pytest.mark.parametrize("text", ["{\n", "\x00\n", '{"epoch": 0\n{"epoch": 1}\n'])
def test_a_damaged_record_in_the_middle_is_named(folder, text):
    (folder / "epochs.jsonl").write_text(text + '{"epoch": 1}\n')
    says(lambda: fit(folder.parent, CONFIG), folder / "epochs.jsonl", "is damaged", f"delete {folder} and train again")


def test_fewer_records_than_the_checkpoint_has_seen_are_damage(folder):
    """A run that went on from there would end with the wrong number of epochs."""
    (folder / "epochs.jsonl").write_text("")
    says(
        lambda: fit(folder.parent, CONFIG),
        folder / "epochs.jsonl",
        "0 records, where the checkpoint has seen 1 epochs",
        "train again",
    )


@pytest.mark.parametrize(("status", "missing"), [("complete", "test"), ("failed", "error")])
def test_a_result_without_what_its_status_promises_is_damage(finished, status, missing):
    path = finished.path / "result.json"
    path.write_text(json.dumps({"schema": 1, "status": status}))
    says(lambda: fit(finished.path.parent, CONFIG), path, f"is damaged (no {missing})")


def test_a_config_that_says_nothing_of_the_data_is_damage(finished):
    path = finished.path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": {"digest": "0"}}))
    says(lambda: favorit.load(finished), path, "is damaged (no channels, classes, image_size, mean, std of the data)")


def test_an_unfinished_run_has_no_result(folder):
    says(lambda: favorit.Run(folder).result, folder, "is not finished", "train it with the same configuration")


def test_missing_weights_are_named(finished):
    (finished.path / "best.safetensors").unlink()
    says(
        lambda: favorit.load(finished),
        finished.path / "best.safetensors",
        "is missing",
        f"delete {finished.path} and train again",
    )


def test_weights_cut_short_are_named(finished):
    path = finished.path / "best.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    says(lambda: favorit.load(finished), path, "damaged", f"delete {finished.path}")


def test_weights_of_another_model_are_named(finished, tmp_path: Path):
    other, _ = fit(tmp_path / "other", tiny(model=dict(dim=16), train=dict(epochs=1)))
    shutil.copy(other.path / "best.safetensors", finished.path)
    says(lambda: favorit.load(finished), finished.path / "best.safetensors", "does not fit this model", "size mismatch")


def test_a_place_that_is_no_run(tmp_path: Path):
    says(lambda: favorit.load(tmp_path / "nothing"), tmp_path / "nothing", "is not a run", "favorit runs")
    (tmp_path / "file").write_text("")
    says(lambda: favorit.load(tmp_path / "file"), tmp_path / "file", "is not a run")


# Checkpoints.


def test_a_checkpoint_of_another_model_is_named(folder, tmp_path: Path):
    other = interrupt(tmp_path / "other", tiny(model=dict(mlp_dim=24)))
    shutil.rmtree(folder / "checkpoint-8")
    shutil.copytree(other / "checkpoint-8", folder / "checkpoint-8")
    says(
        lambda: fit(folder.parent, CONFIG),
        folder / "checkpoint-8" / "model.safetensors",
        "does not fit this model",
        "delete",
    )


def test_a_checkpoint_of_another_format_is_named(folder):
    path = folder / "checkpoint-8" / "state.pt"
    torch.save({**torch.load(path, weights_only=True), "format": 2}, path)
    says(
        lambda: fit(folder.parent, CONFIG),
        folder / "checkpoint-8",
        "format 2, this version reads 1",
        "delete that folder",
    )


def test_a_checkpoint_of_another_optimizer_is_named(folder, tmp_path: Path):
    other = interrupt(tmp_path / "other", tiny(train=dict(optimizer="muon")))
    shutil.copy(other / "checkpoint-8" / "state.pt", folder / "checkpoint-8" / "state.pt")
    says(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", "cannot be resumed from", "delete that folder")


@pytest.mark.parametrize("missing", ["state.pt", "model.safetensors"])
def test_a_checkpoint_without_a_file_is_named(folder, missing):
    (folder / "checkpoint-8" / missing).unlink()
    says(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", missing, "delete")


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps([1, 2])], ids=["empty", "junk", "a list"])
def test_a_damaged_state_is_named(folder, content):
    (folder / "checkpoint-8" / "state.pt").write_bytes(content)
    says(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", "cannot be resumed from", "delete that folder")


@pytest.mark.parametrize("value", [[1, 2], {"format": 1}, {"format": 1, "progress": {}, "states": [[], []]}], ids=str)
def test_a_state_that_says_something_else_is_named(folder, value):
    torch.save(value, folder / "checkpoint-8" / "state.pt")
    says(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", "cannot be resumed from")


class Malicious:
    """Unpickled without care, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize(
    "write", [lambda value, path: torch.save(value, path), lambda value, path: path.write_bytes(pickle.dumps(value))]
)
def test_no_pickle_is_trusted(folder, tmp_path: Path, write):
    trap = tmp_path / "sprung"
    write({"format": 1, "progress": Malicious(trap), "states": []}, folder / "checkpoint-8" / "state.pt")
    says(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8", "cannot be resumed from", "delete that folder")
    assert not trap.exists()
    with suppress(RuntimeError):  # a bare pickle is no file of torch's, which torch finds out too late
        torch.load(folder / "checkpoint-8" / "state.pt", weights_only=False)
    assert trap.exists(), "the case is no case: the trap does not work"


def test_the_folder_named_in_the_message_is_the_one_to_delete(folder, complete):
    (folder / "checkpoint-8" / "state.pt").write_bytes(b"junk")
    says(lambda: fit(folder.parent, CONFIG), folder / "checkpoint-8")
    shutil.rmtree(folder / "checkpoint-8")
    goes_on(folder, complete, 1)


# A disk that fills.


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """The system itself refuses to write more, as a full disk does: safetensors, torch and Python each say so in their
    own way.
    """
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
def test_writing_that_the_system_refuses_is_an_oserror_and_the_run_goes_on(folder, complete, size):
    """5000 bytes hold config.json but no weights, 12000 hold weights but not the optimiser."""
    assert (folder / "checkpoint-8" / "model.safetensors").stat().st_size in range(5001, 12000)
    assert (folder / "checkpoint-8" / "state.pt").stat().st_size > 12000
    with no_file_longer_than(size), pytest.raises(OSError, match="File too large"):
        fit(folder.parent, CONFIG, checkpoint_seconds=0)
    assert complete_checkpoints(folder) == ["checkpoint-8"]
    assert not list(folder.glob("writing-*"))
    goes_on(folder, complete, 9)


@pytest.mark.parametrize("refused", [1, 2, 5, 8, 11, 14, 16, 17])
def test_a_full_disk_at_any_write_loses_nothing(tmp_path: Path, monkeypatch, refused):
    """os.fsync says that there is no space at its Nth call: config, record, weights, checkpoints, predictions,
    result.
    """
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


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    says(lambda: fit(tmp_path / "runs", CONFIG), tmp_path / "runs", "is a file: runs need a folder")
    says(lambda: favorit.runs(tmp_path / "runs"), tmp_path / "runs", "is a file: runs are in a folder")
    with pytest.raises(OSError, match="none"):
        fit(Path("/proc/none"), CONFIG)


# Two at once.

HOLDER = """
import sys
from pathlib import Path
from favorit.training.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_of_two_processes_one_trains_and_the_other_says_so(folder, complete):
    before = {path.name for path in folder.iterdir()}
    process = start("-c", HOLDER, folder, stdin=-1)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        says(
            lambda: fit(folder.parent, CONFIG), folder, "is being trained by another process", "wait for it, or stop it"
        )
        assert {path.name for path in folder.iterdir()} == before
        assert favorit.runs(folder.parent).status.tolist() == ["training"]
        assert favorit.runs(folder.parent).epochs.tolist() == [1]
    finally:
        process.kill()
        process.communicate()
    goes_on(folder, complete, 9)  # the system took the lock from the dead


def test_whoever_looks_is_waited_for_however_long_that_takes(folder, complete, monkeypatch):
    """As `favorit runs` does, stopped by the machine in the middle of its look."""
    from favorit.training import folder as module

    take = module._lock_exclusively
    with open(folder / "lock") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        ending = Timer(1.0, lambda: fcntl.flock(looking, fcntl.LOCK_UN))

        def taking(file: Any) -> bool:
            ending.start()
            return take(file)

        monkeypatch.setattr(module, "_lock_exclusively", taking)
        goes_on(folder, complete, 9)
        ending.join()


def test_the_lock_is_free_again_after_a_failure(folder):
    (folder / "checkpoint-8" / "state.pt").write_bytes(b"junk")
    for _ in range(2):
        says(lambda: fit(folder.parent, CONFIG), "cannot be resumed from")


def test_a_configuration_that_cannot_be_built_leaves_no_run(tmp_path: Path):
    for config in (
        tiny(train=dict(optimizer="adamm")),
        tiny(data=dict(folds=3, fold=3)),
        tiny(train=dict(drop_last=True, batch_size=99)),
    ):
        with pytest.raises(FavoritError):
            fit(tmp_path, config)
    assert favorit.runs(tmp_path).empty


def test_ema_weights_are_checked_like_the_others(tmp_path: Path):
    run, _ = fit(tmp_path, tiny(train=dict(ema=0.5, epochs=1)))
    save_file({"x": torch.zeros(1)}, run.path / "best-ema.safetensors")
    says(lambda: favorit.load(run), run.path / "best-ema.safetensors", "does not fit this model")


def test_checkpoints_are_seconds_apart(tmp_path: Path, monkeypatch):
    """One in five seconds of a clock that moves one second with each look."""
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


def test_epochs_are_read_as_written(complete):
    assert RunFolder(complete.path).epochs() == complete.epochs
    assert [record["epoch"] for record in untimed(complete)] == [0, 1]
