"""The identity of a run: its resolved configuration and the hash of it."""

from __future__ import annotations

import math

from favorit import measure
from favorit.attention.local import LOCALS
from favorit.config import DataConfig, ModelConfig, RunConfig, identify
from favorit.data import AUGMENTS, PREPROCESSES, DataSet, build_preprocess
from favorit.errors import FavoritError
from favorit.model import HEADS, STEMS
from favorit.model.layout import layers
from favorit.position import POSITIONS
from favorit.spec import Registry, parse_pattern, parse_sum
from favorit.training.optim import OPTIMIZERS, SCHEDULES


def resolve(config: RunConfig, data: DataSet) -> RunConfig:
    """The configuration with the fields that the data set determines: image size, channels, classes.

    `data.validation` is reset to its default if the data set has its own validation part.
    """
    check_choices(config)
    size = build_preprocess(config.data.preprocess, data.mean, data.std).output_size(data.image_size)
    if size != data.image_size:
        _check_batch(config, (data.channels, *size))
    model = config.model.replace(image_size=size, channels=data.channels, classes=len(data.classes))
    own = data.validation is not None and config.data.folds is None
    return config.replace(
        model=model, data=config.data.replace(validation=DataConfig().validation) if own else config.data
    )


def check_choices(config: RunConfig) -> None:
    """Raises an error for fields that are valid alone, but of which one would be ignored in training.

    This is not a check of `RunConfig`: stored runs with such fields can still be read.
    """
    data, options = config.data, config.train
    if options.warmup > options.epochs:
        raise FavoritError(
            f"train.warmup={options.warmup:g} is longer than train.epochs={options.epochs}: "
            f"set train.warmup to at most {options.epochs}, or more epochs"
        )
    if data.folds is not None and data.validation != DataConfig().validation:
        raise FavoritError(
            f"data.validation={data.validation:g} and data.folds={data.folds} both choose the validation images: "
            "give one of them (--folds sets data.folds)"
        )


def _check_batch(config: RunConfig, shape: tuple[int, int, int]) -> None:
    """Raises an error if a batch of images that `data.preprocess` enlarges does not fit into the free memory."""
    free, needed = measure.free_memory(), 4 * config.train.batch_size * math.prod(shape)
    if free is not None and needed > free:
        raise FavoritError(
            f"data.preprocess={config.data.preprocess}: a batch of {config.train.batch_size} images of {shape[1]} x "
            f"{shape[2]} needs {needed / 2**30:,.1f} GiB and {free / 2**30:.1f} are free: use a smaller size"
        )


def run_id(config: RunConfig, digest: str) -> str:
    """The identifier of a resolved run: a hash that does not depend on how the configuration was written.

    Layouts are expanded, specs made canonical, defaults left out, and the data set's digest replaces its name.
    """
    model, data, options = config.model, config.data, config.train
    canonical = config.replace(
        model=model.replace(
            layout="all_standard",
            performer=ModelConfig().performer,
            stem=str(STEMS.canonical(model.stem)),
            head=str(HEADS.canonical(model.head)),
            position="+".join(str(POSITIONS.canonical(part)) for part in parse_sum(model.position)),
            local=None if model.local is None else str(LOCALS.canonical(model.local)),
            head_dim=None if model.head_dim == model.dim // model.heads else model.head_dim,
        ),
        data=data.replace(
            name=DataConfig().name,
            skip_unreadable=False,  # the digest is that of the images that were read
            augment=_canonical_pattern(AUGMENTS, data.augment),
            preprocess=_canonical_pattern(PREPROCESSES, data.preprocess),
        ),
        train=options.replace(
            optimizer=str(OPTIMIZERS.canonical(options.optimizer)), schedule=str(SCHEDULES.canonical(options.schedule))
        ),
    )
    mixers = [str(spec) for spec in layers(model.layout, model.performer, model.depth)]
    return identify({**canonical.changed(), "layers": mixers, "digest": digest})


def _canonical_pattern(registry: Registry, text: str | None) -> str | None:
    """A pipeline of steps in canonical form; None if it is empty."""
    if text is None or text.strip() in ("", "none"):
        return None
    return "|".join(str(registry.canonical(spec)) for spec in parse_pattern(text))
