"""Configurations: frozen pydantic models that reject unknown fields, and a hash of their content.

The checks here need only arithmetic. A spec in a text field is checked when its component is built.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from favorit.errors import FavoritError, unknown, valid_values
from favorit.grammar import quote
from favorit.spec import (
    MAX_COMPONENTS,
    Flag,
    NonNegativeFloat,
    NonNegativeInt,
    Pixels,
    PositiveFloat,
    PositiveInt,
    Probability,
    Width,
)

Self = TypeVar("Self", bound="Config")

MAX_MISTAKES = 5  # that one error lists


class Config(BaseModel):
    """A frozen configuration. Each mistake in it raises an error of one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, /, *positional: Any, **values: Any) -> None:
        known = type(self).model_fields
        if positional:
            own = type(self).__name__
            raise FavoritError(
                f"{own} takes its fields by name, such as {own}({next(iter(known))}=...), not {positional[0]!r}"
            )
        for name, value in values.items():
            if name not in known:
                raise unknown(f"field of {type(self).__name__}", name, known)
            if isinstance(value, Mapping) and not all(isinstance(field, str) for field in value):
                raise FavoritError(f"{name}={value!r} is not valid: the names of its fields must be text")
        try:
            super().__init__(**values)
        except ValidationError as error:
            optional = [name for name, field in known.items() if NoneType in get_args(field.annotation)]
            raise FavoritError(explain(error, optional)) from None

    def replace(self: Self, **changes: Any) -> Self:
        """A copy with these fields changed, validated again."""
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **changes})

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON data.

        Adding a field with a default therefore does not change existing run ids.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


def explain(error: ValidationError, optional: Collection[str] = ()) -> str:
    """The mistakes of a validation as one line. A value that fits no type of a union has a problem for each type.

    Fields in `optional` may be None.
    """
    missing: list[str] = []
    by_value: dict[tuple[str, str], list[Any]] = {}
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"] if isinstance(part, str) and part.isidentifier())
        if problem["type"] == "missing" and isinstance(problem["loc"][-1], str):
            missing.append(name)
        else:
            by_value.setdefault((name, quote(problem["input"])), []).append(problem)
    lines = [f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
    lines += [_message(name, value, same, name in optional) for (name, value), same in by_value.items()]
    more = [f"and {len(lines) - MAX_MISTAKES} more"] if len(lines) > MAX_MISTAKES else []
    return "; ".join([*lines[:MAX_MISTAKES], *more])


def _message(name: str, value: str, problems: list[Any], is_optional: bool) -> str:
    """One sentence for a wrong value."""
    valid = valid_values(problems)
    if any(problem["type"] == "value_error" for problem in problems):  # a validator below, which may name its field
        return f"{name}: {valid}" if name and not valid.startswith(name) else valid
    return f"{name}={value} is not valid: {valid}{' or None' if is_optional else ''}"


def _image_size(value: Any) -> Any:
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(f"image_size={quote(value)} is not valid: a number of pixels, or (rows, columns)")
    return tuple(pair)


# Bounds of a model, because building one of 10^9 layers would take hours. `check_memory` bounds the weights.
Depth = Annotated[int, Field(ge=1, le=MAX_COMPONENTS, strict=True)]
Classes = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
Folds = Annotated[int, Field(ge=1, le=1_000, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]

ImageSize = Annotated[tuple[Pixels, Pixels], BeforeValidator(_image_size)]


def _class_weights(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    given = value if isinstance(value, list | tuple) else ()
    weights = [
        part for part in given if isinstance(part, int | float) and not isinstance(part, bool) and 0 <= part < math.inf
    ]
    if len(weights) < len(given) or not any(weights):
        raise ValueError(
            f"class_weights={quote(value)} is not valid: False, True (inverse frequency), "
            "or a tuple with one weight for each class, none negative and not all 0"
        )
    return tuple(map(float, weights))


ClassWeights = Annotated[bool | tuple[float, ...], BeforeValidator(_class_weights)]


# As for `position`, `none` is the name of no local operation. Stored as None, so that both have one run id.
Local = Annotated[str | None, BeforeValidator(lambda value: None if value == "none" else value)]

# YAML and --set read `32` as a number.
Precision = Annotated[Literal["32", "bf16", "fp16"], BeforeValidator(lambda value: "32" if value == 32 else value)]


class ModelConfig(Config):
    """A model: stem, layout of mixers, position, block and head.

    Text fields are specs (`favorit list` lists the components). `performer` is the mixer that named layouts combine
    with softmax. `head_dim=None` means dim / heads. `mlp_dim=0` leaves out the feed-forward network.
    """

    image_size: ImageSize = (32, 32)
    channels: Width = 3
    classes: Classes = 10
    stem: str = "patch(4)"
    dim: Width = 64
    depth: Depth = 4
    heads: Width = 4
    head_dim: Width | None = None
    mlp_dim: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 128
    layout: str = "all_standard"
    performer: str = "favor(m=128)"
    position: str = "learned"
    head: str = "cls"
    norm: Literal["pre", "post", "double", "double_inner"] = "pre"
    act: Literal["gelu", "relu", "elu", "silu"] = "gelu"
    dropout: Probability = 0.0
    emb_dropout: Probability = 0.0
    drop_path: Probability = 0.0
    qkv_bias: Flag = True
    out_bias: Flag = True
    qk_norm: Flag = False
    local: Local = None

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelConfig:
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(
                f"heads={self.heads} does not divide dim={self.dim}: choose heads that do, or give head_dim"
            )
        return self


class DataConfig(Config):
    """The data set and its split.

    `validation` is a fraction or a number of training images; with `folds`, fold number `fold` is the validation part.
    `augment` and `preprocess` are patterns such as `crop(4)|flip` and `resize(72)|normalise(0.5, 0.5)`. Only training
    images are augmented, unless `augment_test` is set, as in some published code. `test_subset` limits the test to that
    many images, the same ones for every run. A result is flagged if `augment_test` or `test_subset` is set.
    `skip_unreadable` skips image files that cannot be read, as if they were not there; the result lists them.
    """

    name: str = "digits"
    augment: str | None = None
    preprocess: str | None = None
    validation: NonNegativeInt | NonNegativeFloat = 0.1
    folds: Folds | None = None
    fold: NonNegativeInt | None = None
    subset: PositiveInt | None = None
    augment_test: Flag = False
    test_subset: PositiveInt | None = None
    skip_unreadable: Flag = False


class TrainConfig(Config):
    """The optimizer, its schedule, and which weights are tested.

    The learning rate is `lr` times the schedule times a linear warmup over `warmup` epochs. `select` chooses the
    weights to test: those of the epoch with the best `monitor` on validation images, or those of the last epoch.
    `patience` stops training after that many epochs without improvement. `ema` is the decay of a moving average of the
    weights; the average is validated and tested instead of the weights. `redraw` draws new random features each epoch,
    every k steps, or never. `class_weights` weights the loss of each class: True weights it by inverse frequency; a
    tuple such as `(1, 1, 1, 1.5, 1, 1.5, 1, 1, 1, 1)` gives one weight per class. The weights are scaled to a mean of 1
    over the training images. `test_batch_size` is the batch size of timed inference. `watch="test"` also evaluates the
    test set after each epoch, to reproduce published work that does so. It changes neither the weights nor their
    selection, and the run is flagged *watched*. `deterministic` allows deterministic algorithms only. It is meant for
    CUDA, where it is unverified. On a CPU, runs with equal numbers of threads are bit-equal without it.
    """

    epochs: PositiveInt = 10
    batch_size: PositiveInt = 128
    drop_last: Flag = False
    optimizer: str = "adamw"
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 1e-4
    schedule: str = "cosine"
    warmup: NonNegativeFloat = 0.0
    clip: PositiveFloat | None = None
    label_smoothing: Probability = 0.0
    class_weights: ClassWeights = False
    ema: Probability | None = None
    redraw: PositiveInt | Literal["never", "epoch"] = "never"
    monitor: Literal["accuracy", "loss"] = "accuracy"
    select: Literal["best", "last"] = "best"
    patience: PositiveInt | None = None
    precision: Precision = "32"
    test_batch_size: PositiveInt = 500
    watch: Literal["test"] | None = None
    deterministic: Flag = False


class RunConfig(Config):
    """The configuration of a run, as in a file for `favorit train --config` and in a run folder.

    `scale` names the reduced version of a study that the run belongs to, such as `small`. None is the published study.
    """

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    seed: Seed = 0
    scale: str | None = None

    @model_validator(mode="after")
    def _selection_fits(self) -> RunConfig:
        selects_epoch = self.train.select == "best" or self.train.patience
        if selects_epoch and not self.data.validation and self.data.folds is None:
            raise ValueError(
                "data.validation=0 leaves no images to select an epoch with: set data.validation above 0, "
                "or train.select=last without train.patience"
            )
        return self


# The sections of a run's configuration.
SECTIONS: dict[str, type[Config]] = {"model": ModelConfig, "data": DataConfig, "train": TrainConfig}


def as_run_config(config: object) -> RunConfig:
    """The configuration of a RunConfig or a dictionary. Raises an error for other types."""
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return RunConfig(**{str(name): value for name, value in config.items()})
    given = repr(config) if isinstance(config, str | int | float | None) else f"a {type(config).__name__}"
    example = "such as {'data': {'name': 'digits'}, 'train': {'epochs': 3}}"
    raise FavoritError(f"config must be a RunConfig or a dictionary, {example}, not {given}")


def identify(content: Any) -> str:
    """The first 16 hex digits of sha256 over canonical JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
