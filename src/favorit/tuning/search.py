"""Tuning from a search space to its best configuration."""

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

from favorit.config import RunConfig
from favorit.data import load_dataset
from favorit.errors import FavoritError, positive, unknown
from favorit.tuning.events import Planned, TuneEvent
from favorit.tuning.objective import OBJECTIVES, identify_run
from favorit.tuning.plan import Plan
from favorit.tuning.result import TuneResult, read_result
from favorit.tuning.samplers import PRUNERS, SAMPLERS
from favorit.tuning.space import Space
from favorit.tuning.spaces import read_space
from favorit.tuning.storage import opened, without_password
from favorit.tuning.worker import load_study, work, work_in_processes

TRIALS = 20
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
    """Searches a space (its name, a YAML file, or fields with their distributions) for the best configuration.

    Trials are runs in `out`, on the validation part of `base.data`; the same call goes on until there are `trials` in
    all (a whole grid, or 20), also beside others that do the same. With `objectives=("accuracy", "latency")` there is
    no single best, but a front. Draws follow from `base.seed`. With several `workers`, call it below `if __name__ ==
    "__main__":`, as Python asks of whoever starts processes.
    """
    found = space if isinstance(space, Space) else read_space(space)
    if base is not None:
        found = replace(found, base=RunConfig(**base) if isinstance(base, dict) else base)
    plan = _plan(
        found,
        name=name or found.name,
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
    plan.places.mkdir(parents=True, exist_ok=True)
    with _quiet_optuna(), opened(plan.storage, plan.out) as kept:
        study = _begin(plan, kept)
        hear = listen or (lambda event: None)
        hear(Planned(plan.trials, sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))))
        ends: list[str] = []
        if workers == 1:
            work(plan, kept, hear)
        else:
            ends = work_in_processes(plan, hear)
        result = read_result(plan, load_study(plan, kept))
    if ends and result.missing:
        raise FavoritError(
            f"a worker ended too soon ({', '.join(ends)}): what is complete is kept, and the same command goes on"
        )
    return result


def _plan(
    space: Space, *, name: str, trials: int | None, sampler: str | None, pruner: str | None, **options: Any
) -> Plan:
    """The plan with its defaults, or an error: whatever is wrong with it shows before anything is there."""
    objectives = options["objectives"]
    for each in objectives:
        if each not in OBJECTIVES:
            raise unknown("objective", each, OBJECTIVES)
    if objectives not in (("accuracy",), ("accuracy", "latency")):
        raise FavoritError(f"the objective {','.join(objectives)!r} is not valid: accuracy, or accuracy,latency")
    if not re.fullmatch(r"[\w.-]+", name):
        raise FavoritError(f"the study's name {name!r} is not valid: letters, digits, '-', '_' and '.'")
    positive(workers=options["workers"], **({} if trials is None else {"trials": trials}))
    data = space.base.data
    if not data.validation and data.folds is None:
        raise FavoritError(
            "data.validation=0 leaves nothing to tune by: give it a share such as 0.1, or data.folds and data.fold"
        )
    space.check()
    wanted = sampler or space.sampler
    most = SAMPLERS.build(wanted, space=space, seed=space.base.seed).most
    halts = pruner or ("median" if len(objectives) == 1 else "none")
    if not isinstance(PRUNERS.build(halts, epochs=space.base.train.epochs), NopPruner) and len(objectives) > 1:
        raise FavoritError(
            f"the pruner {halts!r} cannot be used with two objectives: neither alone says that a trial is lost"
        )
    identify_run(space.base, load_dataset(space.base.data.name, options["data_dir"]))  # the data are there, and fit
    return Plan(
        space=space,
        name=name,
        trials=(trials or TRIALS) if most is None else min(trials or most, most),
        sampler=str(SAMPLERS.canonical(wanted)),
        pruner=str(PRUNERS.canonical(halts)),
        threads=torch.get_num_threads(),
        **options,
    )


def _begin(plan: Plan, storage: BaseStorage) -> optuna.Study:
    """Makes the study, or finds it and checks that it is the same."""
    directions = [OBJECTIVES[name].direction for name in plan.objectives]
    study = optuna.create_study(study_name=plan.name, storage=storage, directions=directions, load_if_exists=True)
    meaning, place = plan.meaning(), without_password(plan.storage or str(plan.out / "tune.db"))
    # Trials first: another process that begins the study just now says whose it is before it has one.
    begun = bool(study.get_trials(deepcopy=False))
    before = study.user_attrs.get("favorit")
    if before is None:
        if begun:
            raise FavoritError(f"the study {plan.name!r} in {place} is not one of favorit's: choose another name")
        study.set_user_attr("favorit", meaning)
        return study
    for part, value in meaning.items():
        if before.get(part) != value:
            raise FavoritError(
                f"the study {plan.name!r} in {place} was begun with another {part}: choose another name, or what it was begun with"
            )
    return study


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Optuna says nothing but what is wrong; progress is ours to show."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
