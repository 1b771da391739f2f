"""Transfer of runs between nodes and driver: all files, an order that survives kills, no file outside the folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import favorit
from favorit import FavoritError, files
from favorit.study.transfer import Contents, read_contents, write_contents
from favorit.training import Checkpoint, Epoch, Event, Run, folder
from favorit.training.folder import RunFolder
from training_helpers import LIVELY, Outcome, assert_bit_equal, fit, tiny

CONFIG = tiny(**LIVELY)  # three epochs of six steps


def interrupt(out: Path, when: Callable[[Event], bool]) -> RunFolder:
    """A run that is stopped at the first event for which `when` is true."""

    def listen(event: Event, _: Any) -> None:
        if when(event):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        favorit.train(CONFIG, out=out, accelerator="cpu", listen=listen, checkpoint_seconds=0)
    (path,) = out.iterdir()
    return RunFolder(path)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(tmp_path_factory.mktemp("complete"), CONFIG)[0]


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return interrupt(tmp_path_factory.mktemp("early"), lambda event: isinstance(event, Checkpoint) and event.step == 3)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return interrupt(tmp_path_factory.mktemp("late"), lambda event: isinstance(event, Epoch) and event.epoch == 1)


def names(run: RunFolder) -> set[str]:
    return {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()}


def test_unfinished_run_is_transferred_completely(late: RunFolder, complete: Run, tmp_path: Path):
    (late.path / ".config.json.123").write_text("half written")
    (late.path / "writing-14").mkdir()
    (late.path / "writing-14" / "model.safetensors").write_text("half written")
    contents = read_contents(late)
    checkpoint = {
        f"checkpoint-12/{file}" for file in ("model.safetensors", "ema.safetensors", "state.pt", "sha256.json")
    }
    assert contents.keys() == {"config.json", "epochs.jsonl", "best.safetensors", "best-ema.safetensors"} | checkpoint
    there = RunFolder(tmp_path / complete.id)
    there.path.mkdir()
    write_contents(contents, there)
    assert names(there) == set(contents)
    assert read_contents(there) == contents
    run, events = fit(tmp_path, CONFIG)
    assert events[0].step == 12
    assert_bit_equal(Outcome.of(run), Outcome.of(complete))


def test_only_the_newest_checkpoint_is_transferred(late: RunFolder, tmp_path: Path):
    """A kill between writing one checkpoint and removing the other leaves two."""
    copy = RunFolder(shutil.copytree(late.path, tmp_path / "copy"))
    (copy.path / "checkpoint-7").mkdir()
    (copy.path / "checkpoint-7" / "state.pt").write_bytes(b"half removed")
    assert read_contents(copy) == read_contents(late)


def test_damaged_newest_checkpoint_is_not_transferred(late: RunFolder, tmp_path: Path):
    copy = RunFolder(shutil.copytree(late.path, tmp_path / "copy"))
    shutil.copytree(copy.path / "checkpoint-12", copy.path / "checkpoint-13")
    (copy.path / "checkpoint-13" / "state.pt").write_bytes(b"damaged")
    assert read_contents(copy) == read_contents(late)


def test_checkpoint_damaged_on_the_way_is_rejected(late: RunFolder, tmp_path: Path):
    contents = {**read_contents(late), "checkpoint-12/state.pt": b"damaged"}
    there = RunFolder(tmp_path / "there")
    there.path.mkdir()
    with pytest.raises(FavoritError, match=r"state.pt is damaged \(its sha256 differs from the recorded one\)"):
        write_contents(contents, there)
    assert there.checkpoints() == []


def test_complete_run_replaces_the_unfinished_one(early: RunFolder, complete: Run, tmp_path: Path):
    there = RunFolder(shutil.copytree(early.path, tmp_path / complete.id))
    write_contents(read_contents(RunFolder(complete.path)), there)
    assert names(there) == names(RunFolder(complete.path))
    assert_bit_equal(Outcome.of(Run(there.path)), Outcome.of(complete))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("what", ["late", "complete"])
def test_run_can_be_resumed_after_a_kill_between_any_two_files(
    early: RunFolder, late: RunFolder, complete: Run, tmp_path: Path, monkeypatch, what
):
    """The driver dies before a file is renamed into place, or before an old checkpoint is removed."""
    contents = read_contents({"late": late, "complete": RunFolder(complete.path)}[what])
    places = 0

    def killing(action: Callable[..., None], number: int) -> Callable[..., None]:
        def act(path: Any, *rest: Any, **options: Any) -> None:
            nonlocal places
            places += 1
            if places == number:
                raise Killed
            action(path, *rest, **options)

        return act

    number, died = 1, True
    while died:
        out = tmp_path / str(number)
        there = RunFolder(shutil.copytree(early.path, out / complete.id))
        places = 0
        with monkeypatch.context() as patch:
            patch.setattr(folder.os, "replace", killing(folder.os.replace, number))
            patch.setattr(files.shutil, "rmtree", killing(files.shutil.rmtree, number))
            try:
                write_contents(contents, there)
                died = False
            except Killed:
                pass
        assert_bit_equal(Outcome.of(fit(out, CONFIG)[0]), Outcome.of(complete))
        number += 1
    assert number > 6


ESCAPES = [
    "../x.json",
    "/tmp/x.json",
    "checkpoint-1/../../x.json",
    "checkpoint-1/a/b.pt",
    "other/x.json",
    "..",
    "",
    "x.json\n",
    "a\0.json",
]
NOT_OURS = [
    "lock",
    ".config.json",
    "config",
    "x.sh",
    "x.pkl",
    "checkpoint-x/state.pt",
    "writing-3/state.pt",
    "checkpoint-1/lock",
]


@pytest.mark.parametrize("name", [*ESCAPES, *NOT_OURS])
def test_invalid_file_name_is_rejected_and_nothing_is_written(tmp_path: Path, name):
    there = RunFolder(tmp_path / "runs" / "id")
    there.path.mkdir(parents=True)
    contents: Contents = {"config.json": b"{}", name: b"x"}
    with pytest.raises(FavoritError, match="is not the name of a file of a run") as error:
        write_contents(contents, there)
    assert "\n" not in str(error.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
