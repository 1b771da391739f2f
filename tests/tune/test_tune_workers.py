"""Processes of one command that share a study, and latency that is measured while all others wait."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from favorit import FavoritError
from favorit.quiet import ACTIVE, GATE
from favorit.tuning import worker
from favorit.tuning.events import Began, Trained, TuneEvent
from favorit.tuning.locks import hold, is_held
from favorit.tuning.plan import Plan
from favorit.tuning.space import Space
from training_helpers import finish, start
from tune_helpers import RATES, easy, outcome, search

PLAN = Plan(
    space=Space("tuning", RATES),
    name="tuning",
    out=Path("runs"),
    trials=3,
    sampler="grid",
    pruner="none",
    objectives=("accuracy",),
    storage=None,
    data_dir=None,
    accelerator="cpu",
    workers=2,
    threads=1,
    repeats=3,
)


def test_workers_share_a_study_and_what_a_killed_one_leaves(tmp_path: Path):
    """One of two is killed in its first epoch; the other ends all trials."""
    killed: list[int] = []
    numbers: list[int] = []

    def listen(event: TuneEvent) -> None:
        if isinstance(event, Began):
            numbers.append(event.number)
        if isinstance(event, Trained) and not killed:
            killed.extend([process.pid for process in multiprocessing.active_children()][:1])
            os.kill(killed[0], signal.SIGKILL)

    result, _ = search(tmp_path / "shared", workers=2, listen=listen)
    assert killed
    assert set(numbers) == {0, 1, 2}
    assert multiprocessing.active_children() == []
    alone, _ = search(tmp_path / "alone")
    assert outcome(result) == outcome(alone)


def test_a_mistake_of_a_worker_is_its_last_word(tmp_path: Path, monkeypatch):
    said: list[Any] = []
    plan = replace(PLAN, out=tmp_path, storage=f"sqlite:///{tmp_path / 'none.db'}")
    (tmp_path / "none.db").write_bytes(b"something else that is no data base" * 99)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        worker.work_in_process(plan, SimpleNamespace(send=said.append))
    assert end.value.code == 1
    assert [type(word) for word in said] == [FavoritError]
    assert "file is not a database" in str(said[0])


def test_a_worker_does_not_outlive_its_command(tmp_path: Path, monkeypatch):
    """Once nobody hears it, it ends in the middle of a trial, which the next command takes up."""
    heard: list[TuneEvent] = []

    def send(event: TuneEvent) -> None:
        heard.append(event)
        if isinstance(event, Trained):
            raise BrokenPipeError

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    options: dict[str, Any] = dict(storage=f"journal:{tmp_path / 'tune.log'}")
    search(tmp_path, trials=1, **options)
    plan = replace(PLAN, space=Space("tuning", RATES, easy()), out=tmp_path, **options)
    with pytest.raises(SystemExit):
        worker.work_in_process(plan, SimpleNamespace(send=send))
    assert [type(event) for event in heard][:2] == [Began, Trained]
    result, events = search(tmp_path, **options)
    assert [(event.number, event.again) for event in events if isinstance(event, Began)] == [(1, True), (2, False)]
    assert [trial.state for trial in result.trials] == ["complete"] * 3


# Latency alone


def test_a_lock_is_held_as_long_as_its_holder_lives(tmp_path: Path):
    lock = tmp_path / "lock"
    with hold(lock):
        assert is_held(lock)
    assert not is_held(lock)
    process = start(
        "-c",
        f"import fcntl, time; f = open({str(lock)!r}, 'a'); fcntl.flock(f, 2); print('held', flush=True); time.sleep(60)",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert is_held(lock)
    process.kill()
    finish(process)
    assert not is_held(lock)
    lock.unlink()
    with pytest.raises(FileNotFoundError):
        is_held(lock)
    assert not lock.exists(), "who looks leaves nothing behind"


def test_latency_is_measured_alone_and_on_all_threads(tmp_path: Path, monkeypatch):
    import torch

    from favorit import measure

    seen: list[tuple[bool, bool, int]] = []
    time_interleaved = measure.time_interleaved

    def spy(calls: Any, **options: Any) -> Any:
        seen.append((is_held(tmp_path / GATE), is_held(tmp_path / ACTIVE), torch.get_num_threads()))
        return time_interleaved(calls, **options)

    monkeypatch.setattr(measure, "time_interleaved", spy)
    monkeypatch.setenv("FAVORIT_LOCKS", str(tmp_path))
    threads = torch.get_num_threads()
    search(tmp_path, {"model.depth": "choice(1)"}, objectives=("accuracy", "latency"))
    assert seen == [(True, True, threads)]
    assert torch.get_num_threads() == threads
    assert not is_held(tmp_path / ACTIVE)
