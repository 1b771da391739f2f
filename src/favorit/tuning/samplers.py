"""Where the next trial goes, and which trial is given up: Optuna's samplers and pruners under our names."""

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

MOST_POINTS = 1_000_000

PRUNERS: Registry[BasePruner] = Registry("pruner", context=("epochs",))


class Sampler(BaseSampler, ABC):
    """Optuna's interface, and how many trials there can be; None is any number."""

    most: int | None = None


class Numbered(Sampler):
    """A sampler whose draws for trial k are a function of (seed, k) and of the trials before: workers with one seed do
    not draw alike, and a study that was killed draws as if it had not been.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make, self._seed = make, seed
        self._sampler = make(0)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._sampler = self._make(seeds.derive(self._seed, "trial", trial.number) % 2**32)
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
    """Trial k is point k of all combinations in a shuffled order: no two trials share one, whoever asks for them."""

    def __init__(self, space: Space, seed: int) -> None:
        if space.size is None:
            endless = [key for key, distribution in space.distributions.items() if distribution.points is None]
            raise FavoritError(
                f"the sampler grid needs fields with a list of values: {endless[0]} is {space.fields[endless[0]]}"
            )
        if space.size > MOST_POINTS:
            raise FavoritError(f"the grid of {space.name!r} has {space.size:,} points: use the sampler tpe or random")
        self._points = {key: distribution.points or () for key, distribution in space.distributions.items()}
        self.most = space.size
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
        place = self._order[trial.number % len(self._order)]
        for key, points in self._points.items():
            place, digit = divmod(place, len(points))
            if key == param_name:
                return Choice.stored(points[digit])
        raise KeyError(param_name)


SAMPLERS: Registry[Sampler] = Registry("sampler", context=("space", "seed"))


@SAMPLERS.register("tpe")
def tpe(seed: int, startup: NonNegativeInt = 10) -> Sampler:
    """Where good trials are dense and bad ones are not (tree-structured Parzen estimator), after some random ones."""
    return Numbered(lambda drawn: TPESampler(n_startup_trials=startup, seed=drawn), seed)


@SAMPLERS.register("random")
def random_(seed: int) -> Sampler:
    """Anywhere."""
    return Numbered(lambda drawn: RandomSampler(seed=drawn), seed)


@SAMPLERS.register("grid")
def grid(space: Space, seed: int) -> Sampler:
    """All combinations in a shuffled order, each once."""
    return Grid(space, seed)


@PRUNERS.register("median")
def median(startup: NonNegativeInt = 5, warmup: NonNegativeInt = 1) -> BasePruner:
    """Gives a trial up whose best epoch so far is below the median of the others at that epoch."""
    return MedianPruner(n_startup_trials=startup, n_warmup_steps=warmup)


@PRUNERS.register("hyperband")
def hyperband(epochs: int, factor: PositiveInt = 3) -> BasePruner:
    """Gives up all but the best of each rung of epochs, in several brackets."""
    return HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=factor)


@PRUNERS.register("none")
def none() -> BasePruner:
    """Lets every trial end."""
    return NopPruner()
