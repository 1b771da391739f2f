"""The result of a search: its trials, the best of them, and the importance of each field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from favorit.config import RunConfig
from favorit.export import write_csv
from favorit.files import write_atomically
from favorit.tuning.plan import Plan
from favorit.tuning.worker import STATES, is_alive

MIN_TRIALS_PER_FIELD = 2  # complete trials; with fewer, importances are mostly noise


@dataclass(frozen=True)
class TrialRecord:
    """A trial. `values` are the values of the objectives in order, or the last accuracy of a pruned trial.

    `run` is the name of its run folder.
    """

    number: int
    state: str
    values: tuple[float, ...] | None
    fields: dict[str, Any]
    run: str | None
    error: str | None
    latency: dict[str, float] | None


@dataclass(frozen=True)
class TuneResult:
    """The current state of a search.

    `front` is the Pareto front, best accuracy first: the trials that no other trial dominates. `best` is the
    configuration of its first trial. `importances` are the shares of each objective's variance that the fields explain;
    empty with too few trials. `wanted` is the requested total number of trials. `elsewhere` is the number of trials
    that other processes are running.
    """

    name: str
    objectives: tuple[str, ...]
    trials: tuple[TrialRecord, ...]
    front: tuple[TrialRecord, ...]
    best: RunConfig | None
    importances: dict[str, dict[str, float]]
    wanted: int
    elsewhere: int

    @property
    def missing(self) -> int:
        """The number of trials that are neither finished nor running."""
        finished = sum(trial.state in ("complete", "pruned", "failed") for trial in self.trials)
        return max(0, self.wanted - finished - self.elsewhere)

    def ranked(self) -> list[TrialRecord]:
        """Complete trials, best accuracy first."""
        complete = [trial for trial in self.trials if trial.state == "complete" and trial.values]
        return sorted(complete, key=_by_accuracy)


def _by_accuracy(trial: TrialRecord) -> tuple[float, int]:
    """Sort key: highest accuracy first, ties broken by trial number."""
    return -(trial.values or (0.0,))[0], trial.number


def read_result(plan: Plan, study: Study) -> TuneResult:
    """Reads the result from the study, which is its only storage."""
    trials = study.get_trials(deepcopy=False)
    records = {trial.number: _record(plan, trial) for trial in trials}
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    front = sorted((records[trial.number] for trial in study.best_trials), key=_by_accuracy)
    best = plan.space.config(front[0].fields) if front else None
    return TuneResult(
        name=plan.name,
        objectives=plan.objectives,
        trials=tuple(records.values()),
        front=tuple(front),
        best=best,
        importances=_importances(plan, study, len(complete)),
        wanted=plan.trials,
        elsewhere=sum(trial.state == TrialState.RUNNING and is_alive(plan.lock_dir, trial) for trial in trials),
    )


def _record(plan: Plan, trial: FrozenTrial) -> TrialRecord:
    distributions = plan.space.distributions
    return TrialRecord(
        number=trial.number,
        state=STATES[trial.state],
        values=tuple(trial.values) if trial.values else None,
        fields={key: distributions[key].from_storage(stored) for key, stored in trial.params.items()},
        run=trial.user_attrs.get("run"),
        error=trial.user_attrs.get("error"),
        latency=trial.user_attrs.get("latency"),
    )


def _importances(plan: Plan, study: Study, complete: int) -> dict[str, dict[str, float]]:
    varied = [key for key, each in plan.space.distributions.items() if len(each.ends) > 1]
    if not varied or complete < max(4, MIN_TRIALS_PER_FIELD * len(varied)):
        return {}

    def shares(index: int) -> dict[str, float]:
        evaluator = FanovaImportanceEvaluator(seed=0)  # explained variance, independent of the direction
        found = get_param_importances(
            study, evaluator=evaluator, params=varied, target=lambda trial: trial.values[index]
        )
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    return {name: shares(index) for index, name in enumerate(plan.objectives)}


def write_best(result: TuneResult, file: Path) -> None:
    """Writes the best configuration as a file for `favorit train --config`."""
    import yaml

    if result.best is None:
        return
    best = result.front[0]
    values = ", ".join(f"{name} {value:.6g}" for name, value in zip(result.objectives, best.values or (), strict=True))
    text = f"# favorit tune, study {result.name}, trial {best.number}, run {best.run}: validation {values}\n"
    text += yaml.safe_dump(result.best.changed(), sort_keys=False, allow_unicode=True)
    write_atomically(file, lambda temporary: temporary.write_text(text))


def write_front(result: TuneResult, file: Path) -> None:
    """Writes the front as CSV: objectives, latency of a batch, run and fields of each trial."""
    rows = [
        {
            "trial": trial.number,
            **dict(zip(result.objectives, trial.values or (), strict=True)),
            **{f"latency_{name}": value for name, value in (trial.latency or {}).items()},
            "run": trial.run,
            **trial.fields,
        }
        for trial in result.front
    ]
    write_csv(rows, file)
