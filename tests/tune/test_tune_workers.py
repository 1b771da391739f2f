"""Worker processes of one search, and latency measured while all other workers are paused."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from favorit import FavoritError, workers
from favorit.locks import is_held
from favorit.machine_lock import ACTIVE, GATE
from favorit.tuning import worker
from favorit.tuning.events import TrialProgress, TrialStarted, TuneEvent
from favorit.tuning.plan import Plan
from favorit.tuning.space import Space
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


def test_trial_of_a_killed_worker_goes_to_the_other_worker(tmp_path: Path, monkeypatch):
    """One of two workers is killed in its first epoch; the other finishes all trials."""
    processes: list[subprocess.Popen[bytes]] = []
    killed: list[int] = []
    numbers: list[int] = []
    popen = subprocess.Popen

    def start_process(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(popen(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(workers.subprocess, "Popen", start_process)

    def listen(event: TuneEvent) -> None:
        if isinstance(event, TrialStarted):
            numbers.append(event.number)
        if isinstance(event, TrialProgress) and not killed:
            killed.append(processes[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    result, _ = search(tmp_path / "shared", workers=2, listen=listen)
    assert killed
    assert set(numbers) == {0, 1, 2}
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0]
    alone, _ = search(tmp_path / "alone")
    assert outcome(result) == outcome(alone)


def test_worker_sends_the_error_that_stops_it(tmp_path: Path):
    sent: list[Any] = []
    plan = replace(PLAN, out=tmp_path, storage=f"sqlite:///{tmp_path / 'none.db'}")
    (tmp_path / "none.db").write_bytes(b"something that is not a database " * 99)
    with pytest.raises(SystemExit) as end:
        worker.work_in_process(SimpleNamespace(send=sent.append), plan)
    assert end.value.code == 1
    assert [type(word) for word in sent] == [FavoritError]
    assert "file is not a database" in str(sent[0])


def test_worker_stops_within_a_trial_when_its_connection_is_closed(tmp_path: Path):
    """The next command resumes the trial."""
    sent: list[TuneEvent] = []

    def send(event: TuneEvent) -> None:
        sent.append(event)
        if isinstance(event, TrialProgress):
            raise BrokenPipeError

    options: dict[str, Any] = dict(storage=f"journal:{tmp_path / 'tune.log'}")
    search(tmp_path, trials=1, **options)
    plan = replace(PLAN, space=Space("tuning", RATES, easy()), out=tmp_path, **options)
    with pytest.raises(SystemExit):
        worker.work_in_process(SimpleNamespace(send=send), plan)
    assert [type(event) for event in sent][:2] == [TrialStarted, TrialProgress]
    result, events = search(tmp_path, **options)
    assert [(event.number, event.resumed) for event in events if isinstance(event, TrialStarted)] == [
        (1, True),
        (2, False),
    ]
    assert [trial.state for trial in result.trials] == ["complete"] * 3


# Latency


def test_latency_is_measured_under_the_machine_lock_on_all_threads(tmp_path: Path, monkeypatch):
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
