"""Samplers choose the fields of the next trial; pruners choose the trials that stop early.

All are Optuna's except the grid sampler.
"""

from __future__ import annotations

import random
from abc import ABC
from collections.abc import Callable
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from favorit import seeds
from favorit.errors import FavoritError
from favorit.spec import NonNegativeInt, PositiveInt, Registry
from favorit.tuning.distributions import Choice
from favorit.tuning.space import Space

MAX_POINTS = 1_000_000

PRUNERS: Registry[BasePruner] = Registry("pruner", context=("epochs",))


class Sampler(BaseSampler, ABC):
    """The interface of Optuna's samplers. `max_trials` is the largest number of trials; None means no limit."""

    max_trials: int | None = None


class SeededByTrial(Sampler):
    """A sampler whose draws for trial k are a function of (seed, k) and of the earlier trials.

    Workers with the same seed therefore draw different trials, and a killed search resumes with the same draws.
    """

    def __init__(self, build: Callable[[int], BaseSampler], seed: int) -> None:
        self._build = build
        self._seed = seed
        self._sampler = build(0)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._sampler = self._build(seeds.derive(self._seed, "trial", trial.number) % 2**32)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        self._sampler.after_trial(study, trial, state, values)


class Grid(Sampler):
    """Trial k is combination k in a shuffled order, so workers never run the same combination twice."""

    def __init__(self, space: Space, seed: int) -> None:
        if space.size is None:
            continuous = [key for key, distribution in space.distributions.items() if distribution.points is None]
            raise FavoritError(
                f"the sampler grid needs fields with a list of values: {continuous[0]} is {space.fields[continuous[0]]}"
            )
        if space.size > MAX_POINTS:
            raise FavoritError(f"the grid of {space.name!r} has {space.size:,} points: use the sampler tpe or random")
        self._points = {key: distribution.points or () for key, distribution in space.distributions.items()}
        self.max_trials = space.size
        self._order = list(range(space.size))
        random.Random(seeds.derive(seed, "grid")).shuffle(self._order)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        index = self._order[trial.number % len(self._order)]
        for key, points in self._points.items():
            index, digit = divmod(index, len(points))
            if key == param_name:
                return Choice.to_storage(points[digit])
        raise KeyError(param_name)


SAMPLERS: Registry[Sampler] = Registry("sampler", context=("space", "seed"))


@SAMPLERS.register("tpe")
def tpe(seed: int, startup: NonNegativeInt = 10) -> Sampler:
    """Tree-structured Parzen estimator: draws near good trials and away from bad ones. The first trials are random."""
    return SeededByTrial(lambda trial_seed: TPESampler(n_startup_trials=startup, seed=trial_seed), seed)


@SAMPLERS.register("random")
def random_(seed: int) -> Sampler:
    """Independent random values."""
    return SeededByTrial(lambda trial_seed: RandomSampler(seed=trial_seed), seed)


@SAMPLERS.register("grid")
def grid(space: Space, seed: int) -> Sampler:
    """All combinations, each once, in a shuffled order."""
    return Grid(space, seed)


@PRUNERS.register("median")
def median(startup: NonNegativeInt = 5, warmup: NonNegativeInt = 1) -> BasePruner:
    """Stops a trial if its best accuracy so far is below the median of the other trials at the same epoch."""
    return MedianPruner(n_startup_trials=startup, n_warmup_steps=warmup)


@PRUNERS.register("hyperband")
def hyperband(epochs: int, factor: PositiveInt = 3) -> BasePruner:
    """At certain numbers of epochs (rungs), stops all but the best trials. Uses several brackets of rungs."""
    return HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=factor)


@PRUNERS.register("none")
def none() -> BasePruner:
    """Stops no trial."""
    return NopPruner()
