"""A worker: takes up what a dead process left, else asks the study for a new trial, until there are as many as there
should be.

A trial is under way as long as the process that took it up lives. Whether it does is told by a lock that dies with it;
of a trial that was taken up in another folder or on another machine, by the last sign of life that it left in the
study.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna import Study, Trial
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from favorit.data import load_dataset
from favorit.errors import FavoritError
from favorit.tuning.events import Began, Over, TuneEvent
from favorit.tuning.locks import hold, is_held
from favorit.tuning.objective import Attempt, Outcome, Read
from favorit.tuning.plan import Plan
from favorit.tuning.samplers import PRUNERS, SAMPLERS
from favorit.tuning.storage import opened
from favorit.workers import Exit, Parent, WorkerPool

SILENCE = 900.0  # seconds without a sign of life after which a trial of elsewhere is taken for dead
DATA_SETS = 2  # that a worker keeps in memory
DEADLY = 3  # times that a trial died after which the others go first: it may be what kills, and would stop them all


def work(plan: Plan, storage: BaseStorage, say: Callable[[TuneEvent], None]) -> None:
    """Does trials until none is left to begin."""
    name = f"worker-{uuid.uuid4().hex}"
    with hold(plan.places / name):
        desk = Desk(plan, load_study(plan, storage), storage, name, lru_cache(DATA_SETS)(load_dataset))
        while (attempt := desk.claim(say)) is not None:
            desk.finish(attempt)
        (plan.places / name).unlink()


def load_study(plan: Plan, storage: BaseStorage) -> Study:
    sampler = SAMPLERS.build(plan.sampler, space=plan.space, seed=plan.space.base.seed)
    pruner = PRUNERS.build(plan.pruner, epochs=plan.space.base.train.epochs)
    return optuna.load_study(study_name=plan.name, storage=storage, sampler=sampler, pruner=pruner)


@dataclass
class Desk:
    """The study as one worker sees it; `name` is that of the lock it holds."""

    plan: Plan
    study: Study
    storage: BaseStorage
    name: str
    read: Read

    def claim(self, say: Callable[[TuneEvent], None]) -> Attempt | None:
        """The next trial, or None. One worker of a folder at a time looks and takes."""
        with hold(self.plan.places / f"{self.plan.name}.lock"):
            trials = self.study.get_trials(deepcopy=False)
            left = [
                found for found in trials if found.state == TrialState.RUNNING and not is_alive(self.plan.places, found)
            ]
            waiting = any(found.state == TrialState.WAITING for found in trials)
            may_begin = waiting or len(trials) < self.plan.trials
            left.sort(key=lambda found: found.user_attrs.get("deaths", 0))
            if left and (not may_begin or left[0].user_attrs.get("deaths", 0) < DEADLY):
                return self._again(left[0], say)
            if not may_begin:
                return None
            if not waiting:
                # In two acts, so that whoever dies between them leaves a trial that waits, and none without an owner.
                self.study.add_trial(optuna.create_trial(state=TrialState.WAITING, user_attrs=self._mark()))
            return self._attempt(self.study.ask(), False, set(), say)

    def _again(self, found: FrozenTrial, say: Callable[[TuneEvent], None]) -> Attempt:
        before = dict(found.user_attrs)  # what is found here changes with the study
        study_id = self.storage.get_study_id_from_name(self.plan.name)
        trial = Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study_id, found.number))
        trial.set_user_attr("deaths", before.get("deaths", 0) + 1)
        attempt = self._attempt(trial, True, set(found.intermediate_values), say)
        if "worker" in before:  # it had one trial, and nobody looks for it any more
            (self.plan.places / before["worker"]).unlink(missing_ok=True)
        return attempt

    def _mark(self) -> dict[str, Any]:
        return {"worker": self.name, "beat": time.time()}

    def _attempt(self, trial: Trial, again: bool, reported: set[int], say: Callable[[TuneEvent], None]) -> Attempt:
        for name, value in self._mark().items():
            trial.set_user_attr(name, value)
        return Attempt(self.plan, self.study, trial, again, reported, self.read, say)

    def finish(self, attempt: Attempt) -> None:
        """Runs the trial and tells the study how it ended. What is wrong with a configuration ends its trial, not the
        others.
        """
        trial = attempt.trial
        values = {key: each.suggest(trial, key) for key, each in self.plan.space.distributions.items()}
        attempt.say(Began(trial.number, values, attempt.again))
        try:
            outcome = attempt.run(self.plan.space.config(values))
        except (FavoritError, RuntimeError, MemoryError) as error:  # what torch raises itself is the second
            outcome = Outcome(TrialState.FAIL, error=" ".join(str(error).split()))
        if outcome.error is not None:
            trial.set_user_attr("error", outcome.error)
        told = self.study.tell(trial, outcome.values, outcome.state, skip_if_finished=True)
        attempt.say(Over(trial.number, STATES[told.state], tuple(told.values) if told.values else None, outcome.error))


STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def is_alive(places: Path, trial: FrozenTrial) -> bool:
    """Whether the process that took a trial up still has it."""
    try:
        return is_held(places / trial.user_attrs.get("worker", "unknown"))
    except FileNotFoundError:
        begun = trial.datetime_start.timestamp() if trial.datetime_start is not None else 0.0
        return time.time() - trial.user_attrs.get("beat", begun) < SILENCE


def work_in_processes(plan: Plan, say: Callable[[TuneEvent], None]) -> list[str]:
    """Runs `plan.workers` workers until all have ended, and returns how those ended that failed. A failed worker's
    trial goes to another one, or to the next call.
    """
    failures: list[str] = []
    with WorkerPool(threads=max(1, plan.threads // plan.workers), imports_main=True) as pool:
        for _ in range(plan.workers):
            pool.start(work_in_process, plan)
        while pool.workers:
            for _, message in pool.messages():
                if isinstance(message, Exit):
                    sys.stderr.write(message.stderr)  # warnings, and the traceback of an unexpected error
                    failures += [str(message)] if message.status else []
                elif isinstance(message, Exception):
                    raise message
                else:
                    say(message)
    return failures


def work_in_process(parent: Parent, plan: Plan) -> None:
    """`work` in a worker process: sends its events, and as its last message the error that stops it."""
    torch.set_num_threads(max(1, plan.threads // plan.workers))
    try:
        with opened(plan.storage, plan.out) as storage:
            work(plan, storage, parent.send)
    except (FavoritError, OSError) as error:
        with suppress(OSError):  # the error may be that the connection is closed
            parent.send(error)
        raise SystemExit(1) from None
