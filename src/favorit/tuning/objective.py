"""One trial: its configuration is trained into an ordinary run folder, and what the run is worth is read from there."""

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
from favorit.data import DataSet
from favorit.quiet import measuring, training
from favorit.training import Begin, Epoch, Event, Run, Step, load, train
from favorit.training.folder import HeldError, RunFolder
from favorit.training.run import resolve, run_id
from favorit.tuning.events import Trained, TuneEvent
from favorit.tuning.plan import Plan

BATCH = 64
BEAT = 30.0  # seconds between two signs of life
SAID = 0.2  # seconds between two words on progress
PAUSE = 0.5  # seconds between two looks at a run that another process trains

Read = Callable[[str, str | Path | None], DataSet]


@dataclass(frozen=True)
class Outcome:
    """How a trial ends."""

    state: TrialState
    values: Sequence[float] | None = None
    error: str | None = None


@dataclass
class Attempt:
    """A trial in the hands of this process. `reported` are the epochs that the study knows of; `read` keeps data from
    trial to trial.
    """

    plan: Plan
    study: Study
    trial: Trial
    again: bool
    reported: set[int]
    read: Read
    say: Callable[[TuneEvent], None]

    def run(self, config: RunConfig) -> Outcome:
        """Trains the run unless its result is there: that of an equal trial, of a run of old, or of the time before a
        kill.
        """
        identifier = identify_run(config, self.read(config.data.name, self.plan.data_dir))
        self.trial.set_user_attr("run", identifier)
        folder = RunFolder(self.plan.out / identifier)
        while True:
            if (twin := self._twin(identifier)) is not None:
                return self._like(twin)
            if self.trial.user_attrs.get("pruned"):  # and then its process died
                return Outcome(TrialState.PRUNED)
            try:
                return self._train(config, folder)
            except HeldError:  # its result will do
                self.trial.set_user_attr("beat", time.time())
                time.sleep(PAUSE)

    def _train(self, config: RunConfig, folder: RunFolder) -> Outcome:
        beaten = said = time.monotonic()
        with training() as pause:

            def hear(event: Event, config: RunConfig) -> bool | None:
                nonlocal beaten, said
                now = time.monotonic()
                if isinstance(event, Begin):
                    self._report(folder.epochs())
                elif isinstance(event, Epoch):
                    self.say(
                        Trained(self.trial.number, (event.epoch + 1) / config.train.epochs, event.validation_accuracy)
                    )
                    self._report([{"epoch": event.epoch, "validation_accuracy": event.validation_accuracy}])
                    return event.epoch + 1 < config.train.epochs and self._is_given_up()
                elif isinstance(event, Step):
                    pause()
                    if now - said >= SAID:
                        said = now
                        self.say(
                            Trained(self.trial.number, (event.epoch + event.step / event.steps) / config.train.epochs)
                        )
                    if now - beaten >= BEAT:
                        beaten = now
                        self.trial.set_user_attr("beat", time.time())
                return None

            plan = self.plan
            run = train(
                config,
                out=plan.out,
                data_dir=plan.data_dir,
                accelerator=plan.accelerator,
                workers=plan.workers,
                read=self.read,
                listen=hear,
            )
        if run.result["status"] == "pruned":
            return Outcome(TrialState.PRUNED)
        self._report(run.epochs)
        return Outcome(TrialState.COMPLETE, [OBJECTIVES[name].measure(self, run) for name in self.plan.objectives])

    def _is_given_up(self) -> bool:
        if not self.plan.prunes or not self.trial.should_prune():
            return False
        self.trial.set_user_attr("pruned", True)
        return True

    def _report(self, epochs: Sequence[dict[str, Any]]) -> None:
        """Tells the study of epochs that it does not know of; of one objective only, as nothing is pruned else."""
        for record in epochs if self.plan.prunes else ():
            if (number := record["epoch"] + 1) not in self.reported:
                self.trial.report(record["validation_accuracy"], number)
                self.reported.add(number)

    def _twin(self, identifier: str) -> FrozenTrial | None:
        """A finished trial of the same run."""
        others = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
        return next((other for other in others if other.user_attrs.get("run") == identifier), None)

    def _like(self, twin: FrozenTrial) -> Outcome:
        for name in ("latency", "error"):
            if name in twin.user_attrs:
                self.trial.set_user_attr(name, twin.user_attrs[name])
        self._report(
            [{"epoch": step - 1, "validation_accuracy": value} for step, value in twin.intermediate_values.items()]
        )
        values = twin.values if twin.state == TrialState.COMPLETE else None
        return Outcome(twin.state, values, twin.user_attrs.get("error"))


@dataclass(frozen=True)
class Objective:
    """What is asked of a run, which way is better, and how it is written."""

    direction: Literal["maximize", "minimize"]
    measure: Callable[[Attempt, Run], float]
    show: Callable[[float], str]


def _accuracy(attempt: Attempt, run: Run) -> float:
    """Validation accuracy of the weights that the run ends with: those of its best epoch."""
    return float(run.result["validation"]["accuracy"])


def _latency(attempt: Attempt, run: Run) -> float:
    """Milliseconds from one image to its class, on all threads, while no study, search or benchmark of this machine
    computes.
    """
    loaded = load(run)
    images = torch.randint(256, (BATCH, loaded.channels, *loaded.image_size), dtype=torch.uint8)
    with measuring():
        threads = torch.get_num_threads()
        torch.set_num_threads(attempt.plan.threads)
        try:
            calls = {"one": lambda: loaded.predict(images[:1]), "batch": lambda: loaded.predict(images)}
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
    """The name of the folder that the run will have."""
    return run_id(resolve(config, data), data.digest)
