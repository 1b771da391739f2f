"""Runs one trial: trains its configuration in an ordinary run folder, then measures the objectives on the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from optuna import Study, Trial
from optuna.trial import FrozenTrial, TrialState

from favorit import measure
from favorit.config import RunConfig
from favorit.data import DataSet, read_spec
from favorit.machine_lock import measuring, training
from favorit.training import Begin, Epoch, Event, Run, Step, load, train
from favorit.training.folder import HeldError, RunFolder
from favorit.training.identity import resolve, run_id
from favorit.tuning.events import TrialProgress, TuneEvent
from favorit.tuning.plan import Plan

BATCH = 64
HEARTBEAT_SECONDS = 30.0
PROGRESS_SECONDS = 0.2
RETRY_SECONDS = 0.5  # between two attempts to lock a run that another process trains

Read = Callable[[str, str | Path | None], DataSet]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial: its state, the values of the objectives, and the error of a failed trial."""

    state: TrialState
    values: Sequence[float] | None = None
    error: str | None = None


@dataclass
class Attempt:
    """A trial that this process runs.

    `reported` holds the epochs whose values the study already has. `read` caches data sets between trials.
    """

    plan: Plan
    study: Study
    trial: Trial
    resumed: bool
    reported: set[int]
    read: Read
    emit: Callable[[TuneEvent], None]

    def run(self, config: RunConfig) -> Outcome:
        """Trains the run and returns its outcome.

        A run with a result from an equal trial, an earlier search or a killed process is not trained again.
        """
        identifier = identify_run(config, self.read(read_spec(config.data), self.plan.data_dir))
        self.trial.set_user_attr("run", identifier)
        folder = RunFolder(self.plan.out / identifier)
        while True:
            if (duplicate := self._finished_duplicate(identifier)) is not None:
                return self._copy(duplicate)
            if self.trial.user_attrs.get("pruned"):  # the process that pruned it died
                return Outcome(TrialState.PRUNED)
            try:
                return self._train(config, folder)
            except HeldError:  # another process trains this run: wait for its result
                self.trial.set_user_attr("beat", time.time())
                time.sleep(RETRY_SECONDS)

    def _train(self, config: RunConfig, folder: RunFolder) -> Outcome:
        last_beat = last_progress = time.monotonic()
        with training() as pause:

            def on_event(event: Event, config: RunConfig) -> bool | None:
                nonlocal last_beat, last_progress
                number, epochs, now = self.trial.number, config.train.epochs, time.monotonic()
                if isinstance(event, Begin):
                    self._report(folder.epochs())
                elif isinstance(event, Epoch):
                    self.emit(TrialProgress(number, (event.epoch + 1) / epochs, event.validation_accuracy))
                    self._report([{"epoch": event.epoch, "validation_accuracy": event.validation_accuracy}])
                    return event.epoch + 1 < epochs and self._should_prune()
                elif isinstance(event, Step):
                    pause()
                    if now - last_progress >= PROGRESS_SECONDS:
                        last_progress = now
                        self.emit(TrialProgress(number, (event.epoch + event.step / event.steps) / epochs))
                    if now - last_beat >= HEARTBEAT_SECONDS:
                        last_beat = now
                        self.trial.set_user_attr("beat", time.time())
                return None

            plan = self.plan
            run = train(
                config,
                out=plan.out,
                name=f"trial {self.trial.number}",
                study=plan.name,
                data_dir=plan.data_dir,
                accelerator=plan.accelerator,
                workers=plan.workers,
                read=self.read,
                listen=on_event,
                progress=False,
            )
        if run.result["status"] == "pruned":
            return Outcome(TrialState.PRUNED)
        self._report(run.epochs)
        return Outcome(TrialState.COMPLETE, [OBJECTIVES[name].measure(self, run) for name in self.plan.objectives])

    def _should_prune(self) -> bool:
        if not self.plan.prunes or not self.trial.should_prune():
            return False
        self.trial.set_user_attr("pruned", True)
        return True

    def _report(self, epochs: Sequence[dict[str, Any]]) -> None:
        """Reports the epochs that the study does not have yet. Optuna accepts reports for a single objective only."""
        for record in epochs if self.plan.prunes else ():
            if (number := record["epoch"] + 1) not in self.reported:
                self.trial.report(record["validation_accuracy"], number)
                self.reported.add(number)

    def _finished_duplicate(self, identifier: str) -> FrozenTrial | None:
        """A finished trial of the same run, or None."""
        others = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
        return next((other for other in others if other.user_attrs.get("run") == identifier), None)

    def _copy(self, other: FrozenTrial) -> Outcome:
        for name in ("latency", "error"):
            if name in other.user_attrs:
                self.trial.set_user_attr(name, other.user_attrs[name])
        self._report(
            [{"epoch": step - 1, "validation_accuracy": value} for step, value in other.intermediate_values.items()]
        )
        values = other.values if other.state == TrialState.COMPLETE else None
        return Outcome(other.state, values, other.user_attrs.get("error"))


@dataclass(frozen=True)
class Objective:
    """A quantity that the search optimizes: its direction, its measurement on a run, and its format."""

    direction: Literal["maximize", "minimize"]
    measure: Callable[[Attempt, Run], float]
    format: Callable[[float], str]


def _accuracy(attempt: Attempt, run: Run) -> float:
    """Validation accuracy of the final weights: those of the best epoch, or of the last if train.select=last."""
    return float(run.result["validation"]["accuracy"])


def _latency(attempt: Attempt, run: Run) -> float:
    """Milliseconds to classify one image on all threads. Study workers are paused, and no other benchmark runs."""
    model = load(run)
    images = torch.randint(256, (BATCH, model.channels, *model.image_size), dtype=torch.uint8)
    with measuring():
        threads = torch.get_num_threads()
        torch.set_num_threads(attempt.plan.threads)
        try:
            calls = {"one": lambda: model.probabilities(images[:1]), "batch": lambda: model.probabilities(images)}
            found = measure.time_interleaved(calls, repeats=attempt.plan.repeats)
        finally:
            torch.set_num_threads(threads)
    milliseconds = {name: 1e3 * timing.median for name, timing in found.items()}
    attempt.trial.set_user_attr("latency", {**milliseconds, "images": BATCH})
    return milliseconds["one"]


OBJECTIVES = {
    "accuracy": Objective("maximize", _accuracy, lambda value: f"{value:.2%}"),
    "latency": Objective("minimize", _latency, lambda value: f"{value:.2f} ms"),
}


def identify_run(config: RunConfig, data: DataSet) -> str:
    """The identifier of the run, which names its folder."""
    return run_id(resolve(config, data), data.digest)
