"""Configurations: frozen data with no unknown keys, and the identifier that is a function of what they mean.

They stop at the builders: modules take plain keyword arguments. What a text field names is checked where it is built;
here is what arithmetic alone can tell.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from favorit.errors import FavoritError, unknown
from favorit.spec import Flag, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Probability

Self = TypeVar("Self", bound="Config")


class Config(BaseModel):
    """A frozen configuration whose mistakes read as one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, **values: Any) -> None:
        known = type(self).model_fields
        for name in values:
            if name not in known:
                raise unknown(f"field of {type(self).__name__}", name, known)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise FavoritError("; ".join(_sentence(problem) for problem in error.errors())) from None

    def replace(self: Self, **changes: Any) -> Self:
        """The same configuration with some fields changed, checked anew."""
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **changes})

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON data: a new field with a default changes no old
        identifier.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


def _sentence(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"] if isinstance(part, str) and part.isidentifier())
    if problem["type"] == "value_error":  # a sentence of our own, which names its field
        message = problem["msg"].removeprefix("Value error, ")
        return f"{place}: {message}" if place and not message.startswith(place) else message
    if problem["type"] == "missing":
        return f"{place} is missing"
    return f"{place}={problem['input']!r} is not valid: {problem['msg'].lower()}"


def _size(value: Any) -> Any:
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(f"image_size={value!r} is not valid: one number of pixels, or (rows, columns)")
    return tuple(pair)


ImageSize = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_size)]


def _class_weights(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    given = value if isinstance(value, list | tuple) else ()
    numbers = [
        part for part in given if isinstance(part, int | float) and not isinstance(part, bool) and 0 <= part < math.inf
    ]
    if len(numbers) < len(given) or not any(numbers):
        raise ValueError(
            f"class_weights={value!r} is not valid: False, True (inverse frequency), "
            "or a tuple with one weight for each class, none negative and not all 0"
        )
    return tuple(map(float, numbers))


ClassWeights = Annotated[bool | tuple[float, ...], BeforeValidator(_class_weights)]


# `32` is a number to YAML and to --set.
Precision = Annotated[Literal["32", "bf16", "fp16"], BeforeValidator(lambda value: "32" if value == 32 else value)]


class ModelConfig(Config):
    """A point in the product of the axes: stem, layout of mixers, position, block, head.

    Text fields are specs (`favorit list` names what there is). `performer` is the mixer that named layouts put beside
    softmax; `head_dim` None means dim / heads; `mlp_dim` 0 leaves the feed-forward network out.
    """

    image_size: ImageSize = (32, 32)
    channels: PositiveInt = 3
    classes: PositiveInt = 10
    stem: str = "patch(4)"
    dim: PositiveInt = 64
    depth: PositiveInt = 4
    heads: PositiveInt = 4
    head_dim: PositiveInt | None = None
    mlp_dim: NonNegativeInt = 128
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
    local: str | None = None

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelConfig:
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(
                f"heads={self.heads} does not divide dim={self.dim}: choose heads that do, or give head_dim"
            )
        return self


class DataConfig(Config):
    """What is trained on, and how it is split.

    `validation` is a fraction or a count of training images; with `folds` it is fold number `fold` instead. `augment`
    and `preprocess` are patterns such as `crop(4)|flip` and `resize(72)|normalise(0.5, 0.5)`; only training images are
    augmented, unless `augment_test` asks for what some published code does. `test_subset` tests on that many images,
    the same for every run. Both are flagged in the result.
    """

    name: str = "digits"
    augment: str | None = None
    preprocess: str | None = None
    validation: NonNegativeInt | NonNegativeFloat = 0.1
    folds: PositiveInt | None = None
    fold: NonNegativeInt | None = None
    subset: PositiveInt | None = None
    augment_test: Flag = False
    test_subset: PositiveInt | None = None


class TrainConfig(Config):
    """How it is trained.

    The learning rate rises over `warmup` epochs, then follows the schedule. `select` names the weights that are tested:
    those of the epoch that `monitor` (on validation images) liked best, or the last. `patience` stops after that many
    epochs without a better one. `ema` is the decay of a moving average of the weights, which is then what is validated
    and tested. `redraw` draws random features anew each epoch, every k steps, or never. `class_weights` weighs the loss
    of each class: True by the inverse of its frequency, a tuple by hand, such as `(1, 1, 1, 1.5, 1, 1.5, 1, 1, 1, 1)`.
    Weights are scaled to a mean of 1 over the training images. `test_batch_size` is the batch at which inference is
    timed. `watch="test"` also evaluates the test set after each epoch, for reproductions whose protocol does so: it
    changes no weight and no choice, and the run is flagged *watched*. `deterministic` allows deterministic algorithms
    only. It is meant for CUDA, where it is unverified; on a CPU runs are bit-equal at equal threads without it.
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
    """A whole run: what `favorit train --config` reads and what a run folder keeps.

    `scale` names the reduction of its study that the run belongs to, such as `small`; None is the study as published.
    """

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    seed: NonNegativeInt = 0
    scale: str | None = None

    @model_validator(mode="after")
    def _selection_fits(self) -> RunConfig:
        chooses = self.train.select == "best" or self.train.patience
        if chooses and not self.data.validation and self.data.folds is None:
            raise ValueError(
                "data.validation=0 leaves nothing to choose by: set train.select=last and no patience, or a validation part"
            )
        return self


# The parts of a run's configuration that are configurations themselves.
SECTIONS: dict[str, type[Config]] = {"model": ModelConfig, "data": DataConfig, "train": TrainConfig}


def identify(meaning: Any) -> str:
    """16 hex digits of sha256 over canonical JSON."""
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
