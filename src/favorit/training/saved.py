"""Checks the JSON files of a run. Consumers may use every field declared here without a check of their own.

A folder of runs may hold files that were edited or damaged. One of them must not hide the other runs, so each file is
checked once, where it is read.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from favorit.config import RunConfig, explain
from favorit.errors import FavoritError
from favorit.files import damaged
from favorit.grammar import quote
from favorit.spec import Pixels, PositiveFloat, Width

Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]


class _Saved(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class Card(_Saved):
    """The facts about a data set that inference needs, so that it works without the data."""

    digest: str
    classes: Annotated[list[str], Field(min_length=1)]
    mean: list[float]
    std: list[PositiveFloat]
    image_size: Annotated[list[Pixels], Field(min_length=2, max_length=2)]
    channels: Width
    name: str | None = None
    fit: str = ""  # missing in older runs

    @model_validator(mode="after")
    def _channels_fit(self) -> Card:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(
                f"data has {len(self.mean)} means and {len(self.std)} deviations for {self.channels} channels"
            )
        return self


class _Sections(_Saved):
    model: dict[str, Any]
    data: dict[str, Any]
    train: dict[str, Any]


class Configuration(_Saved):
    """config.json."""

    config: _Sections
    data: Card
    id: str | None = None
    layers: str = ""  # missing in older runs
    name: str | None = None
    study: str | None = None
    started: str | None = None
    sha256: str | None = None


class Evaluated(_Saved):
    """Loss and accuracy, where known."""

    accuracy: Share | None = None
    loss: float | None = None


class BestTest(Evaluated):
    accuracy: Share
    epoch: Count | None = None


class BestLoss(_Saved):
    value: float
    epoch: Count


class Test(_Saved):
    """The metrics of a test."""

    accuracy: Share
    top5: Share
    loss: float
    calibration_error: float
    precision: list[float] = []
    recall: list[float] = []
    f1: list[float] = []
    confusion: list[list[Count]] = []


class Milestone(_Saved):
    epoch: Count
    seconds: Seconds


class Reached(_Saved):
    curve: str
    accuracies: dict[str, Milestone]


class Complete(_Saved):
    """result.json of a complete run. Optional fields are missing in results of older versions."""

    epochs: Annotated[Count, Field(ge=1)]
    test: Test
    validation: Evaluated | None
    parameters: Count
    flags: list[str]
    train_seconds_per_epoch: Seconds
    inference_seconds: Seconds
    images_per_second: Seconds
    train_loss: float | None = None
    train_accuracy: Share | None = None
    train_seconds: Seconds | None = None
    total_seconds: Seconds | None = None
    inference_batch: Count | None = None
    inference_seconds_per_batch: Annotated[list[Seconds | None], Field(max_length=2)] = []
    best_validation_loss: BestLoss | None = None
    best_test: BestTest | None = None
    plain_test: Evaluated | None = None
    chosen_epoch: Count | None = None
    steps: Count | None = None
    reached: Reached | None = None
    peak_memory: Count | None = None
    flops: Annotated[float, Field(ge=0)] | None = None
    paths: list[str] = []
    environment: dict[str, str | bool | Count | Seconds | None] | None = None
    weights: dict[str, str] = {}


class Failed(_Saved):
    """result.json of a run that diverged."""

    error: str


class Pruned(_Saved):
    """result.json of a pruned run."""

    epochs: Count
    validation: Evaluated | None = None


RESULTS: dict[str, type[_Saved]] = {"complete": Complete, "failed": Failed, "pruned": Pruned}


class EpochRecord(_Saved):
    """A line of epochs.jsonl."""

    epoch: Count
    train_loss: float
    train_accuracy: Share
    validation_loss: float | None
    validation_accuracy: Share | None
    lr: float
    train_seconds: Seconds
    validation_seconds: Seconds
    best: bool
    test_loss: float | None = None
    test_accuracy: Share | None = None
    test_seconds: Seconds | None = None
    scalars: dict[str, Annotated[float, Field(allow_inf_nan=True)]] = {}


Records = TypeAdapter(list[EpochRecord])


def check_config(saved: dict[str, Any], path: str) -> dict[str, Any]:
    """The content of config.json; raises an error that names `path` if it is damaged."""
    try:
        card = Configuration.model_validate(saved).data
        model = RunConfig(**saved["config"]).model
    except ValidationError as error:
        raise damaged(path, explain(error)) from None
    except FavoritError as error:
        raise damaged(path, error) from None
    if (len(card.classes), card.channels) != (model.classes, model.channels):
        reason = f"{len(card.classes)} classes and {card.channels} channels for a model with"
        raise damaged(path, f"{reason} {model.classes} and {model.channels}")
    return saved


def check_result(result: dict[str, Any], path: str) -> dict[str, Any]:
    """The content of result.json; raises an error that names `path` if it is damaged."""
    kind = RESULTS.get(str(result.get("status")))
    if kind is None:
        raise damaged(path, f"status={quote(result.get('status'))} is not valid: {', '.join(RESULTS)}")
    try:
        kind.model_validate(result)
    except ValidationError as error:
        raise damaged(path, explain(error)) from None
    return result


def check_epochs(records: list[Any], path: str) -> list[dict[str, Any]]:
    """The records of epochs.jsonl; raises an error that names `path` if one is damaged."""
    try:
        Records.validate_python(records)
    except ValidationError as error:
        raise damaged(path, explain(error)) from None
    return records


def is_edited(saved: dict[str, Any]) -> bool:
    """True if config.json was changed since it was written. Older versions did not record its sha256."""
    return saved.get("sha256") not in (None, seal(saved))


def seal(saved: dict[str, Any]) -> str:
    """sha256 of the fields of config.json that determine a run. Names of data sets are left out: images may move."""
    config = {**saved["config"], "data": {**saved["config"]["data"], "name": None}}
    content = {"id": saved.get("id"), "config": config, "data": {**saved["data"], "name": None}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
