"""Search spaces as data: dotted fields of a run's configuration and their distributions.

train.lr: log(1e-4, 3e-3)                                                      a field
model.performer.m: choice(64, 128)                                             a parameter of a field's component
model.dropout, model.stem.dropout: uniform(0, 0.5)                             one value for several fields
train.optimizer, train.schedule: choice(('adam', 'step'), ('sgd', 'cosine'))   a tuple: one value for each field
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from favorit.config import RunConfig
from favorit.errors import FavoritError, unknown
from favorit.fields import DEFAULTS, get_field, replace_fields, split_parameter
from favorit.spec import Spec, parse
from favorit.tuning.distributions import Distribution, build_distribution

# To check a value, at most this many combinations with values of the other fields are tried, until one is valid.
MAX_COMBINATIONS = 500
SEARCHABLE = DEFAULTS.keys() - {"scale"}


@dataclass(frozen=True)
class Space:
    """A search space: `fields` with their distributions as text. All other fields are those of `base`."""

    name: str
    fields: Mapping[str, str]
    base: RunConfig = field(default_factory=RunConfig)
    sampler: str = "tpe"

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        return {key: _distribution(key, text) for key, text in self.fields.items()}

    @property
    def size(self) -> int | None:
        """The number of combinations, or None if a distribution is continuous."""
        points = [distribution.points for distribution in self.distributions.values()]
        return math.prod(len(each) for each in points if each is not None) if None not in points else None

    def config(self, values: Mapping[str, Any]) -> RunConfig:
        """The base with these values. Parameters are set last, because their component may be searched too."""
        changes: dict[str, Any] = {}
        for name, value in sorted(_by_field(values), key=lambda change: change[0].count(".")):
            field_name, parameter = split_parameter(name)
            if parameter:
                component = changes.get(field_name, get_field(self.base, field_name))
                changes[field_name] = _set_parameter(name, component, parameter, value)
            else:
                changes[field_name] = value
        return replace_fields(self.base, changes)

    def check(self) -> None:
        """Raises an error if a field does not exist, or an end of a distribution is valid in no combination."""
        if not self.fields:
            raise FavoritError(
                f"the search space {self.name!r} is empty: write fields such as train.lr: log(1e-4, 3e-3)"
            )
        seen: set[str] = set()
        for key in self.fields:
            for name in _split(key):
                if split_parameter(name)[0] not in SEARCHABLE:
                    raise unknown("field in the search space", name, SEARCHABLE)
                if name in seen:
                    raise FavoritError(f"the search space {self.name!r} contains {name} twice")
                seen.add(name)
        for key, distribution in self.distributions.items():
            for value in distribution.ends:
                self._check_value(key, value)

    def _check_value(self, key: str, value: Any) -> None:
        from favorit.training.identity import run_id

        reasons = []
        for others in _combinations({name: each.ends for name, each in self.distributions.items() if name != key}):
            try:
                run_id(self.config({**others, key: value}), digest="")
                return
            except FavoritError as error:
                reasons.append(str(error))
        tried = "no combination" if len(reasons) < MAX_COMBINATIONS else f"none of {MAX_COMBINATIONS} combinations"
        raise FavoritError(f"the search space {self.name!r}: {key}={value!r} is valid in {tried}: {reasons[0]}")


def _combinations(values: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """All combinations, or a random sample of MAX_COMBINATIONS if there are more.

    The first combinations in order would not do: they differ in the last fields only.
    """
    if math.prod(map(len, values.values())) < MAX_COMBINATIONS:
        yield from (dict(zip(values, each, strict=True)) for each in product(*values.values()))
    else:
        draw = random.Random(0)
        yield from ({name: draw.choice(each) for name, each in values.items()} for _ in range(MAX_COMBINATIONS))


def _distribution(key: str, text: str) -> Distribution:
    try:
        return build_distribution(text)
    except FavoritError as error:
        raise FavoritError(f"the search space at {key}: {error}") from None


def _split(key: str) -> list[str]:
    """The fields in a key, which are separated by commas."""
    return [name.strip() for name in key.split(",")]


def _by_field(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(field, value) for each field of each key."""
    for key, value in values.items():
        names = _split(key)
        parts = value if isinstance(value, tuple) and len(names) > 1 else (value,) * len(names)
        if len(parts) != len(names):
            raise FavoritError(
                f"the search space gives {value!r} to {len(names)} fields, {key}: give one value, or one for each"
            )
        yield from zip(names, parts, strict=True)


def _set_parameter(name: str, component: Any, parameter: str, value: Any) -> str:
    if not isinstance(component, str):
        raise FavoritError(
            f"the search space contains {name}, but {name.removesuffix('.' + parameter)} is {component!r}, "
            "not a component"
        )
    spec = parse(component)
    return str(Spec(spec.name, spec.args, {**spec.kwargs, parameter: value}))
