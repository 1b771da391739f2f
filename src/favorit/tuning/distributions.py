"""Distributions of a searched field: `choice(1, 2, 4)`, `int(1, 5)`, `uniform(0, 0.5)`, `log(1e-4, 3e-3)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from favorit.errors import FavoritError
from favorit.spec import PositiveFloat, PositiveInt, Registry

if TYPE_CHECKING:
    from optuna import Trial

Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]


class Distribution(ABC):
    """The values that a field may take.

    `points` are all values, or None if the distribution is continuous. `ends` are the values that are checked before
    the search starts: each must be valid in some combination with other fields.
    """

    @property
    @abstractmethod
    def ends(self) -> tuple[Any, ...]: ...

    @property
    def points(self) -> tuple[Any, ...] | None:
        return None

    @abstractmethod
    def suggest(self, trial: Trial, name: str) -> Any:
        """The value of the field in this trial. The first call draws it."""

    def from_storage(self, stored: Any) -> Any:
        """The value of the field, from its form in Optuna's storage."""
        return stored


DISTRIBUTIONS: Registry[Distribution] = Registry("distribution")


@DISTRIBUTIONS.register("choice", rest="values")
@dataclass(frozen=True)
class Choice(Distribution):
    """One of these values."""

    values: Annotated[tuple[Any, ...], Field(min_length=1)]

    def __post_init__(self) -> None:
        if len({repr(value) for value in self.values}) < len(self.values):
            raise FavoritError(f"choice{self.values!r} contains a value twice")

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    @property
    def points(self) -> tuple[Any, ...]:
        return self.values

    def suggest(self, trial: Trial, name: str) -> Any:
        return self.from_storage(trial.suggest_categorical(name, [self.to_storage(value) for value in self.values]))

    def from_storage(self, stored: Any) -> Any:
        return next(value for value in self.values if self.to_storage(value) == stored)

    @staticmethod
    def to_storage(value: Any) -> Any:
        """The form of a value in Optuna's storage: tuples become text."""
        return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


@DISTRIBUTIONS.register("int")
@dataclass(frozen=True)
class Int(Distribution):
    """low, low + step, ... up to high."""

    low: Annotated[int, Field(strict=True)]
    high: Annotated[int, Field(strict=True)]
    step: PositiveInt = 1

    def __post_init__(self) -> None:
        _check_order(self.low, self.high)

    @property
    def ends(self) -> tuple[int, ...]:
        return self.low, self.points[-1]

    @property
    def points(self) -> tuple[int, ...]:
        return tuple(range(self.low, self.high + 1, self.step))

    def suggest(self, trial: Trial, name: str) -> int:
        return trial.suggest_int(name, self.low, self.points[-1], step=self.step)


@dataclass(frozen=True)
class Real(Distribution):
    """A number between low and high: uniform, or uniform in its logarithm if `log` is True."""

    low: float
    high: float
    log: bool

    def __post_init__(self) -> None:
        _check_order(self.low, self.high)

    @property
    def ends(self) -> tuple[float, ...]:
        return self.low, self.high

    def suggest(self, trial: Trial, name: str) -> float:
        return trial.suggest_float(name, self.low, self.high, log=self.log)


@DISTRIBUTIONS.register("uniform")
def uniform(low: Number, high: Number) -> Distribution:
    """A number between low and high, uniform."""
    return Real(low, high, log=False)


@DISTRIBUTIONS.register("log")
def log(low: PositiveFloat, high: PositiveFloat) -> Distribution:
    """A number between low and high, uniform in its logarithm."""
    return Real(low, high, log=True)


def _check_order(low: float, high: float) -> None:
    if low > high:
        raise FavoritError(f"low={low} is above high={high}")


def build_distribution(text: str) -> Distribution:
    """The distribution written as text, such as `log(1e-4, 3e-3)`."""
    return DISTRIBUTIONS.build(text)
