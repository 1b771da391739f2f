"""`favorit.tune`: searches a space for its best configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.pruners import NopPruner
from optuna.storages import BaseStorage

from favorit.config import RunConfig, as_run_config
from favorit.data import load_dataset, read_spec
from favorit.errors import FavoritError, check_path, check_positive, unknown
from favorit.process import check_accelerator
from favorit.training.components import sources
from favorit.tuning.events import StudyStarted, TuneEvent
from favorit.tuning.objective import OBJECTIVES, identify_run
from favorit.tuning.plan import Plan
from favorit.tuning.result import TuneResult, read_result
from favorit.tuning.samplers import PRUNERS, SAMPLERS
from favorit.tuning.space import Space
from favorit.tuning.spaces import read_space
from favorit.tuning.storage import hide_password, open_storage
from favorit.tuning.worker import load_study, work, work_in_processes

DEFAULT_TRIALS = 20  # for samplers other than grid
Listen = Callable[[TuneEvent], None]


def tune(
    space: str | Path | Mapping[str, str] | Space,
    base: RunConfig | dict[str, Any] | None = None,
    *,
    out: str | Path = "runs",
    name: str | None = None,
    trials: int | None = None,
    sampler: str | None = None,
    pruner: str | None = None,
    objectives: Sequence[str] = ("accuracy",),
    storage: str | None = None,
    workers: int = 1,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
    repeats: int = 21,
    listen: Listen | None = None,
) -> TuneResult:
    """Searches a space for the best configuration.

    The search ends when there are `trials` in total. Rerun the same call to resume; several processes may run it at
    once. All draws follow from `base.seed`. With several `workers`, call it below `if __name__ == "__main__":`, as
    multiprocessing requires.

    Args:
        space: The name of a built-in space, a YAML file, or a dictionary of fields and their distributions.
        base: The configuration that trials change: a RunConfig or a dictionary. Trials are runs in `out`, compared on
            the validation images of its data.
        trials: The number of trials in total; by default a whole grid, or 20.
        sampler, pruner: Specs such as `tpe` and `median`.
        objectives: `("accuracy",)`, or `("accuracy", "latency")`, for which the result has a Pareto front.
        storage: The URL of an Optuna storage; by default a file in `out`.
        repeats: The number of measurements of a latency.
        listen: Called with every event.

    Example:
        result = favorit.tune({"train.lr": "log(1e-4, 1e-2)"}, {"train": {"epochs": 3}}, trials=8)
        result.best
    """
    check_path("out", out)
    for option, text in (("name", name), ("storage", storage), ("sampler", sampler), ("pruner", pruner)):
        if not isinstance(text, str | None):
            raise FavoritError(f"{option}={text!r} is not valid: text, or None")
    if isinstance(objectives, str):
        objectives = objectives.split(",")
    if not isinstance(space, Space):
        space = read_space(space)
    if base is not None:
        space = replace(space, base=as_run_config(base))
    plan = _plan(
        space,
        name=name or space.name,
        out=Path(out),
        trials=trials,
        sampler=sampler,
        pruner=pruner,
        objectives=tuple(objectives),
        storage=storage,
        data_dir=None if data_dir is None else Path(data_dir),
        accelerator=accelerator,
        workers=workers,
        repeats=repeats,
    )
    with _optuna_errors_only(), open_storage(plan.storage, plan.out) as backend:
        plan.lock_dir.mkdir(parents=True, exist_ok=True)
        study = _create_study(plan, backend)
        emit = listen or (lambda event: None)
        finished = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
        emit(StudyStarted(plan.trials, finished))
        ends: list[str] = []
        if workers == 1:
            work(plan, backend, emit)
        else:
            ends = work_in_processes(plan, emit)
        result = read_result(plan, load_study(plan, backend))
    if ends and result.missing:
        raise FavoritError(f"a worker died ({', '.join(ends)}): complete trials are kept; rerun to resume")
    return result


def _plan(
    space: Space, *, name: str, trials: int | None, sampler: str | None, pruner: str | None, **options: Any
) -> Plan:
    """The plan with defaults filled in. Raises all errors in the plan before anything is created on disk."""
    objectives = options["objectives"]
    for each in objectives:
        if each not in OBJECTIVES:
            raise unknown("objective", each, OBJECTIVES)
    if objectives not in (("accuracy",), ("accuracy", "latency")):
        raise FavoritError(f"the objective {','.join(objectives)!r} is not valid: use accuracy, or accuracy,latency")
    if not re.fullmatch(r"[\w.-]+", name):
        raise FavoritError(f"the study's name {name!r} is not valid: use letters, digits, '-', '_' and '.'")
    check_accelerator(options["accelerator"])
    check_positive(workers=options["workers"], **({} if trials is None else {"trials": trials}))
    data = space.base.data
    if not data.validation and data.folds is None:
        raise FavoritError(
            "data.validation=0 leaves no images to compare trials on: set a fraction such as 0.1, "
            "or data.folds and data.fold"
        )
    space.check()
    sampler = sampler or space.sampler
    max_trials = SAMPLERS.build(sampler, space=space, seed=space.base.seed).max_trials
    pruner = pruner or ("median" if len(objectives) == 1 else "none")
    if not isinstance(PRUNERS.build(pruner, epochs=space.base.train.epochs), NopPruner) and len(objectives) > 1:
        raise FavoritError(f"the pruner {pruner!r} cannot be used with two objectives: use none")
    identify_run(
        space.base, load_dataset(read_spec(space.base.data), options["data_dir"])
    )  # raises an error if the data set does not fit the model
    return Plan(
        space=space,
        name=name,
        trials=(trials or DEFAULT_TRIALS) if max_trials is None else min(trials or max_trials, max_trials),
        sampler=str(SAMPLERS.canonical(sampler)),
        pruner=str(PRUNERS.canonical(pruner)),
        threads=torch.get_num_threads(),
        sources=sources(),
        **options,
    )


def _create_study(plan: Plan, storage: BaseStorage) -> optuna.Study:
    """Creates the study, or loads it and checks that its plan is the same."""
    directions = [OBJECTIVES[name].direction for name in plan.objectives]
    study = optuna.create_study(study_name=plan.name, storage=storage, directions=directions, load_if_exists=True)
    settings, place = plan.fixed_settings(), hide_password(plan.storage or str(plan.out / "tune.db"))
    # Read trials before attributes: a process that creates the study sets its attribute before the first trial.
    has_trials = bool(study.get_trials(deepcopy=False))
    before = study.user_attrs.get("favorit")
    if before is None:
        if has_trials:
            raise FavoritError(f"the study {plan.name!r} in {place} was not created by favorit: choose another name")
        study.set_user_attr("favorit", settings)
        return study
    for part, value in settings.items():
        if before.get(part) != value:
            raise FavoritError(
                f"the study {plan.name!r} in {place} was started with another {part}: "
                f"choose another name, or the {part} it was started with"
            )
    return study


@contextmanager
def _optuna_errors_only() -> Iterator[None]:
    """Limits Optuna's log to errors inside the block, because favorit displays the progress."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
