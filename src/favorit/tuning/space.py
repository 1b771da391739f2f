"""Search spaces as data: dotted fields of a run's configuration, and what each may be.

train.lr: log(1e-4, 3e-3)                                                      a field
model.performer.m: choice(64, 128)                                             a parameter of the component that a field
names model.dropout, model.stem.dropout: uniform(0, 0.5)                             the same value for several
train.optimizer, train.schedule: choice(('adam', 'step'), ('sgd', 'cosine'))   tuples: one part for each
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from favorit.config import Config, RunConfig
from favorit.errors import FavoritError, unknown
from favorit.spec import Spec, parse
from favorit.tuning.distributions import Distribution, build_distribution

MOST_COMBINATIONS = 500  # that are tried to find one in which a value fits


@dataclass(frozen=True)
class Space:
    """A search space: `fields` and their distributions as text, and the configuration that all other fields come
    from.
    """

    name: str
    fields: Mapping[str, str]
    base: RunConfig = field(default_factory=RunConfig)
    sampler: str = "tpe"

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        return {key: _distribution(key, text) for key, text in self.fields.items()}

    @property
    def size(self) -> int | None:
        """How many combinations there are; None where they are endless."""
        points = [distribution.points for distribution in self.distributions.values()]
        return math.prod(len(each) for each in points if each is not None) if None not in points else None

    def config(self, values: Mapping[str, Any]) -> RunConfig:
        """The base with these values. Parameters of components come last: the component may be chosen too."""
        changes = sorted(_spread(values), key=lambda change: change[0].count("."))
        sections: dict[str, dict[str, Any]] = {name: {} for name in _sections()}
        top: dict[str, Any] = {}
        for place, value in changes:
            section, _, rest = place.partition(".")
            name, _, parameter = rest.partition(".")
            if not rest:
                top[section] = value
            elif parameter:
                text = sections[section].get(name, getattr(getattr(self.base, section), name))
                sections[section][name] = _with_parameter(place, text, parameter, value)
            else:
                sections[section][name] = value
        return self.base.replace(
            **{name: getattr(self.base, name).replace(**new) for name, new in sections.items() if new}, **top
        )

    def check(self) -> None:
        """An error where a field does not exist, or a value fits in no combination: all that can be known without
        building models.
        """
        if not self.fields:
            raise FavoritError(
                f"the search space {self.name!r} is empty: write fields such as train.lr: log(1e-4, 3e-3)"
            )
        known = {f"{section}.{name}" for section, kind in _sections().items() for name in kind.model_fields} | {"seed"}
        seen: set[str] = set()
        for key in self.fields:
            for place in _places(key):
                if ".".join(place.split(".")[:2]) not in known:
                    raise unknown("field in the search space", place, known)
                if place in seen:
                    raise FavoritError(f"the search space {self.name!r} names {place} twice")
                seen.add(place)
        for key, distribution in self.distributions.items():
            for value in distribution.ends:
                self._check_value(key, value)

    def _check_value(self, key: str, value: Any) -> None:
        from favorit.training.run import run_id

        reasons = []
        for others in _combinations({name: each.ends for name, each in self.distributions.items() if name != key}):
            try:
                run_id(self.config({**others, key: value}), digest="")
                return
            except FavoritError as error:
                reasons.append(str(error))
        tried = "no combination" if len(reasons) < MOST_COMBINATIONS else f"none of {MOST_COMBINATIONS} combinations"
        raise FavoritError(f"the search space {self.name!r}: {key}={value!r} fits in {tried}: {reasons[0]}")


def _combinations(values: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """All of them, or where they are many some at random: in order, the first ones would hardly differ."""
    if math.prod(map(len, values.values())) < MOST_COMBINATIONS:
        yield from (dict(zip(values, each, strict=True)) for each in product(*values.values()))
    else:
        draw = random.Random(0)
        yield from ({name: draw.choice(each) for name, each in values.items()} for _ in range(MOST_COMBINATIONS))


def _distribution(key: str, text: str) -> Distribution:
    try:
        return build_distribution(text)
    except FavoritError as error:
        raise FavoritError(f"the search space at {key}: {error}") from None


def _sections() -> dict[str, type[Config]]:
    base = RunConfig()
    return {name: type(part) for name in RunConfig.model_fields if isinstance(part := getattr(base, name), Config)}


def _places(key: str) -> list[str]:
    return [place.strip() for place in key.split(",")]


def _spread(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(place, value) for each field that a key names."""
    for key, value in values.items():
        places = _places(key)
        parts = value if isinstance(value, tuple) and len(places) > 1 else (value,) * len(places)
        if len(parts) != len(places):
            raise FavoritError(
                f"the search space gives {value!r} to {len(places)} fields, {key}: one value, or one for each"
            )
        yield from zip(places, parts, strict=True)


def _with_parameter(place: str, text: Any, parameter: str, value: Any) -> str:
    if not isinstance(text, str):
        raise FavoritError(
            f"the search space names {place}, but {place.removesuffix('.' + parameter)} is {text!r}, not a component"
        )
    spec = parse(text)
    return str(Spec(spec.name, spec.args, {**spec.kwargs, parameter: value}))
