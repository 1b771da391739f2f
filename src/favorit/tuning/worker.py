"""A worker of a search: resumes trials of dead processes, then starts new ones until there are enough.

The process that runs a trial holds a file lock, which the system releases when the process dies. A trial from another
folder or machine has no such lock here: it counts as running until its last heartbeat in the study is too old.
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
from favorit.locks import hold, is_held
from favorit.tuning.events import TrialFinished, TrialStarted, TuneEvent
from favorit.tuning.objective import Attempt, Outcome, Read
from favorit.tuning.plan import Plan
from favorit.tuning.samplers import PRUNERS, SAMPLERS
from favorit.tuning.storage import open_storage
from favorit.workers import Exit, Parent, WorkerPool

MAX_SILENCE = 900.0  # seconds without a heartbeat after which a trial without a lock here counts as dead
CACHED_DATA_SETS = 2  # in the memory of a worker
# A trial whose process died this often is resumed last, because it may kill every process that runs it.
MAX_DEATHS = 3


def work(plan: Plan, storage: BaseStorage, emit: Callable[[TuneEvent], None]) -> None:
    """Runs trials until none is left to start."""
    name = f"worker-{uuid.uuid4().hex}"
    with hold(plan.lock_dir / name):
        worker = Worker(plan, load_study(plan, storage), storage, name, lru_cache(CACHED_DATA_SETS)(load_dataset))
        while (attempt := worker.claim(emit)) is not None:
            worker.finish(attempt)
        (plan.lock_dir / name).unlink()


def load_study(plan: Plan, storage: BaseStorage) -> Study:
    """The Optuna study of a plan, with its sampler and pruner."""
    sampler = SAMPLERS.build(plan.sampler, space=plan.space, seed=plan.space.base.seed)
    pruner = PRUNERS.build(plan.pruner, epochs=plan.space.base.train.epochs)
    return optuna.load_study(study_name=plan.name, storage=storage, sampler=sampler, pruner=pruner)


@dataclass
class Worker:
    """The state of one worker. `name` is the name of the lock that it holds."""

    plan: Plan
    study: Study
    storage: BaseStorage
    name: str
    read: Read

    def claim(self, emit: Callable[[TuneEvent], None]) -> Attempt | None:
        """The next trial to run, or None. A lock lets one worker of a folder claim at a time."""
        with hold(self.plan.lock_dir / f"{self.plan.name}.lock"):
            trials = self.study.get_trials(deepcopy=False)
            dead = [
                trial
                for trial in trials
                if trial.state == TrialState.RUNNING and not is_alive(self.plan.lock_dir, trial)
            ]
            is_waiting = any(trial.state == TrialState.WAITING for trial in trials)
            may_start = is_waiting or len(trials) < self.plan.trials
            dead.sort(key=lambda trial: trial.user_attrs.get("deaths", 0))
            if dead and (not may_start or dead[0].user_attrs.get("deaths", 0) < MAX_DEATHS):
                return self._resume(dead[0], emit)
            if not may_start:
                return None
            if not is_waiting:
                # In two steps: a worker that dies between them leaves a waiting trial, not a running one without owner.
                self.study.add_trial(optuna.create_trial(state=TrialState.WAITING, user_attrs=self._owner()))
            return self._attempt(self.study.ask(), False, set(), emit)

    def _resume(self, dead: FrozenTrial, emit: Callable[[TuneEvent], None]) -> Attempt:
        attributes = dict(dead.user_attrs)  # a copy, because `dead` changes with the study
        study_id = self.storage.get_study_id_from_name(self.plan.name)
        trial = Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study_id, dead.number))
        trial.set_user_attr("deaths", attributes.get("deaths", 0) + 1)
        attempt = self._attempt(trial, True, set(dead.intermediate_values), emit)
        if "worker" in attributes:  # a worker runs one trial at a time, so its lock file is not needed any more
            (self.plan.lock_dir / attributes["worker"]).unlink(missing_ok=True)
        return attempt

    def _owner(self) -> dict[str, Any]:
        """The attributes of a trial that name its worker and the time of its last heartbeat."""
        return {"worker": self.name, "beat": time.time()}

    def _attempt(self, trial: Trial, resumed: bool, reported: set[int], emit: Callable[[TuneEvent], None]) -> Attempt:
        for name, value in self._owner().items():
            trial.set_user_attr(name, value)
        return Attempt(self.plan, self.study, trial, resumed, reported, self.read, emit)

    def finish(self, attempt: Attempt) -> None:
        """Runs the trial and reports its outcome to the study. An invalid configuration only fails its own trial."""
        trial = attempt.trial
        values = {key: each.suggest(trial, key) for key, each in self.plan.space.distributions.items()}
        attempt.emit(TrialStarted(trial.number, values, attempt.resumed))
        try:
            outcome = attempt.run(self.plan.space.config(values))
        except (FavoritError, RuntimeError, MemoryError) as error:  # torch raises RuntimeError
            outcome = Outcome(TrialState.FAIL, error=" ".join(str(error).split()))
        if outcome.error is not None:
            trial.set_user_attr("error", outcome.error)
        stored = self.study.tell(trial, outcome.values, outcome.state, skip_if_finished=True)
        values_found = tuple(stored.values) if stored.values else None
        attempt.emit(TrialFinished(trial.number, STATES[stored.state], values_found, outcome.error))


STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def is_alive(lock_dir: Path, trial: FrozenTrial) -> bool:
    """True if the process that runs the trial is alive, by its lock or else by its last heartbeat."""
    try:
        return is_held(lock_dir / trial.user_attrs.get("worker", "unknown"))
    except FileNotFoundError:
        started = trial.datetime_start.timestamp() if trial.datetime_start is not None else 0.0
        return time.time() - trial.user_attrs.get("beat", started) < MAX_SILENCE


def work_in_processes(plan: Plan, emit: Callable[[TuneEvent], None]) -> list[str]:
    """Runs `plan.workers` workers until all have ended. Returns a line for each worker that failed.

    Another worker, or the next call, resumes the trial of a failed worker.
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
                    emit(message)
    return failures


def work_in_process(parent: Parent, plan: Plan) -> None:
    """Runs `work` in a worker process. Sends its events, and the error if one stops it."""
    torch.set_num_threads(max(1, plan.threads // plan.workers))
    try:
        for source in plan.sources:
            source.load()
        with open_storage(plan.storage, plan.out) as storage:
            work(plan, storage, parent.send)
    except (FavoritError, OSError) as error:
        with suppress(OSError):  # the error may be that the connection is closed
            parent.send(error)
        raise SystemExit(1) from None
