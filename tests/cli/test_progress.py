"""Lines and bars of events, on a terminal and in piped output."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from favorit import RunConfig
from favorit.cli import progress
from favorit.config import TrainConfig
from favorit.study.tasks import Began, Ended, EpochDone, Task, Unfinished
from favorit.tuning.events import StudyStarted, TrialFinished, TrialProgress, TrialStarted

TASK = Task("layout=softmax", RunConfig(train=TrainConfig(epochs=2)), "0123456789abcdef")
RECORD = {"epoch": 0, "validation_accuracy": 0.5, "train_accuracy": 0.75}
RESULT: dict[str, Any] = {"test": {"accuracy": 0.25}, "total_seconds": 3.0}


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def console(out: io.StringIO, is_terminal: bool) -> Console:
    return Console(file=out, force_terminal=is_terminal, width=200, highlight=False)


def report(results: int = 0) -> Any:
    """A stub for the report of two tasks, with the fields that the display reads."""
    plan = SimpleNamespace(study=SimpleNamespace(name="layouts"), tasks=[TASK, TASK])
    return SimpleNamespace(plan=plan, results=dict.fromkeys(range(results)), errors={})


@pytest.mark.parametrize(
    ("is_terminal", "delay", "is_shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_delayed_bar_appears_on_a_terminal_after_the_delay(
    monkeypatch: pytest.MonkeyPatch, out: io.StringIO, is_terminal: bool, delay: float, is_shown: bool
) -> None:
    monkeypatch.setattr(progress, "BAR_DELAY", delay)
    with progress.delayed_bar(console(out, is_terminal), "measuring") as move:
        move(1, 3)
        move(3, 3)
    assert ("measuring" in out.getvalue()) == is_shown
    assert is_shown or out.getvalue() == ""


def test_piped_study_has_lines_for_starts_epochs_and_ends(monkeypatch: pytest.MonkeyPatch, out: io.StringIO) -> None:
    monkeypatch.setattr(progress, "EPOCH_INTERVAL", 0.0)
    with progress.study_progress(console(out, False), report(1)) as show:
        show(Began(TASK, 0, "worker 1"))
        show(EpochDone(TASK, RECORD))
        show(Began(TASK, 7, "worker 2"))
        show(EpochDone(TASK, {**RECORD, "epoch": 1, "validation_accuracy": None}))
        show(Ended(TASK, RESULT))
        show(Ended(TASK, RESULT, elsewhere=True))
        show(Unfinished(TASK, "the loss became nan"))
        show(Unfinished(TASK, "time is up", later=True))
    assert out.getvalue().splitlines() == [
        "layout=softmax   starts on worker 1",
        "layout=softmax   epoch 1/2, validation 50.00%",
        "layout=softmax   resumes at step 7 on worker 2",
        "layout=softmax   epoch 2/2, training 75.00%",
        "[1/2] layout=softmax   test 25.00%",
        "[1/2] layout=softmax   test 25.00%   done by another runner",
        "[1/2] layout=softmax   failed: the loss became nan",
        "[1/2] layout=softmax   stopped: time is up",
    ]


def test_piped_study_limits_the_lines_about_epochs(out: io.StringIO) -> None:
    with progress.study_progress(console(out, False), report()) as show:
        show(Began(TASK, 0, "worker 1"))
        for epoch in range(9):
            show(EpochDone(TASK, {**RECORD, "epoch": epoch}))
    assert out.getvalue().splitlines() == ["layout=softmax   starts on worker 1"]


def test_study_on_a_terminal_has_bars_and_the_lines_of_finished_runs(out: io.StringIO) -> None:
    with progress.study_progress(console(out, True), report(1)) as show:
        show(Began(TASK, 0, "worker 1"))
        show(EpochDone(TASK, RECORD))
        show(Ended(TASK, RESULT))
    shown = out.getvalue()
    assert "starts on worker 1" not in shown
    assert "layouts" in shown
    assert "[1/2] layout=softmax   test 25.00%" in shown
    assert shown.rstrip().endswith("\x1b[2K"), "the bars are erased"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_tuning_has_lines_for_starts_and_ends_of_trials(out: io.StringIO, is_terminal: bool) -> None:
    with progress.tuning_progress(console(out, is_terminal)) as show:
        show(StudyStarted(3, 0))
        show(TrialStarted(0, {"train.lr": 0.0125, "model.depth": 2}, resumed=False))
        show(TrialProgress(0, 0.5, 0.75))
        show(TrialFinished(0, "complete", (0.875, 1.5), None))
        show(TrialStarted(1, {}, resumed=True))
        show(TrialFinished(1, "failed", None, "the loss became nan"))
    lines = [
        "trial 0 starts: train.lr 0.0125, model.depth 2",
        "trial 0 is complete: 87.50%, 1.50 ms",
        "trial 1 resumes: ",
        "trial 1 failed: the loss became nan",
    ]
    if is_terminal:
        assert all(line in out.getvalue() for line in lines)
    else:
        assert out.getvalue().splitlines() == lines
