"""Dotted names of the fields of a run's configuration: `section.key`, such as `train.lr`, or `seed`.

The command line, studies and search spaces all name fields this way. A third part names a parameter of the component
in the field: `model.performer.m`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from favorit.config import SECTIONS, RunConfig
from favorit.errors import FavoritError, unknown
from favorit.spec import literal

# Every field of RunConfig with its default.
DEFAULTS: dict[str, Any] = {
    f"{section}.{key}": field.default
    for section, config in SECTIONS.items()
    for key, field in config.model_fields.items()
} | {name: field.default for name, field in RunConfig.model_fields.items() if name not in SECTIONS}


# What each field of a section is, for `favorit list fields`.
DESCRIPTIONS = {
    "model.image_size": "Pixels: a number, or (rows, columns). The data set determines it in training.",
    "model.channels": "Channels of an image. The data set determines it in training.",
    "model.classes": "Number of classes. The data set determines it in training.",
    "model.stem": "Pixels to tokens: a stem, such as patch(4).",
    "model.dim": "Width of a token.",
    "model.depth": "Number of layers.",
    "model.heads": "Heads of each layer. They divide dim unless head_dim is given.",
    "model.head_dim": "Width of a head. None: dim / heads.",
    "model.mlp_dim": "Hidden width of the feed-forward network; 0 leaves it out.",
    "model.layout": "The mixers of the layers: a named layout, or a pattern such as relu(m=64)|softmax.",
    "model.performer": "The mixer that named layouts combine with softmax.",
    "model.position": "Position encodings, such as learned or learned+rope2d.",
    "model.head": "Tokens to logits: cls, mean, seqpool or mlp(...).",
    "model.norm": "Where a block normalizes: pre, post, double or double_inner.",
    "model.act": "Activation of the feed-forward network: gelu, relu, elu or silu.",
    "model.dropout": "Dropout in the blocks.",
    "model.emb_dropout": "Dropout of the tokens before the first block.",
    "model.drop_path": "Stochastic depth: the probability to skip a block, in the last layer.",
    "model.qkv_bias": "Biases of the projections to q, k and v.",
    "model.out_bias": "Bias of the projection after attention.",
    "model.qk_norm": "Normalize q and k in each head.",
    "model.local": "A convolution of v next to attention, such as dwconv(3).",
    "data.name": "A data set, such as cifar10, folder:PATH or synthetic(size=8).",
    "data.augment": "Augmentation of training images, such as crop(4)|flip.",
    "data.preprocess": "Preprocessing of all images, such as resize(72)|normalise(0.5, 0.5).",
    "data.validation": "Training images held out to choose the epoch: a fraction below 1, or a number.",
    "data.folds": "Number of cross-validation folds, instead of data.validation.",
    "data.fold": "The fold to validate on, from 0.",
    "data.skip_unreadable": "Skip image files that cannot be read, and list them in the result.",
    "data.subset": "Use only this many training images.",
    "data.augment_test": "Augment test images too, as some published code does. The result is flagged.",
    "data.test_subset": "Test on this many images only. The result is flagged.",
    "train.epochs": "Number of epochs.",
    "train.batch_size": "Images of a training step.",
    "train.drop_last": "Leave out the last batch of an epoch if it is smaller.",
    "train.optimizer": "The optimizer, such as adamw or sgd(momentum=0.9).",
    "train.lr": "Learning rate, before schedule and warm-up.",
    "train.weight_decay": "Weight decay of matrices.",
    "train.schedule": "Factor of the learning rate over the epochs, such as cosine.",
    "train.warmup": "Epochs of linear warm-up.",
    "train.clip": "Largest norm of the gradient. None: no clipping.",
    "train.label_smoothing": "Probability that is spread over all classes in the targets.",
    "train.class_weights": "Weights of classes in the loss: True (inverse frequency), or a tuple.",
    "train.ema": "Decay of a moving average of the weights, which is then validated and tested.",
    "train.redraw": "When to draw new random features: never, epoch, or every k steps.",
    "train.monitor": "What chooses the best epoch on validation images: accuracy or loss.",
    "train.select": "The weights to test: those of the best epoch, or of the last.",
    "train.patience": "Stop after this many epochs without improvement.",
    "train.precision": "32, bf16 or fp16 (GPU only).",
    "train.test_batch_size": "Images of a batch in timed inference.",
    "train.watch": "test: also evaluate the test set after each epoch. The run is flagged.",
    "train.deterministic": "Allow deterministic algorithms only. For CUDA, where it is unverified.",
}


def nest(changes: Mapping[str, Any]) -> dict[str, Any]:
    """{"model.dim": 64, "seed": 1} -> {"model": {"dim": 64}, "data": {}, "train": {}, "seed": 1}."""
    nested: dict[str, Any] = {section: {} for section in SECTIONS}
    for name, value in changes.items():
        section, dot, key = name.partition(".")
        if dot:
            nested[section][key] = value
        else:
            nested[name] = value
    return nested


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `nest`: {"model": {"dim": 64}, "seed": 1} -> {"model.dim": 64, "seed": 1}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name in SECTIONS:
            flat |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            flat[name] = value
    return flat


def get_field(config: RunConfig, name: str) -> Any:
    """The value of a dotted field."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def fields_set(config: RunConfig) -> dict[str, Any]:
    """{dotted field: value} for the fields that were set explicitly."""
    sections = {name: getattr(config, name).model_fields_set for name in config.model_fields_set & SECTIONS.keys()}
    names = [f"{section}.{key}" for section, keys in sections.items() for key in keys]
    names += config.model_fields_set - SECTIONS.keys()
    return {name: get_field(config, name) for name in names}


def replace_fields(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """A copy of the configuration with these dotted fields changed."""
    values = nest(changes)
    sections = {name: getattr(config, name).replace(**part) for name in SECTIONS if (part := values.pop(name))}
    return config.replace(**sections, **values)


def split_parameter(name: str) -> tuple[str, str]:
    """`model.performer.m` -> (`model.performer`, `m`): the field, and the parameter of its component or ""."""
    section, _, rest = name.partition(".")
    key, _, parameter = rest.partition(".")
    return f"{section}.{key}" if key else section, parameter


def parse_settings(settings: Iterable[str], sections: tuple[str, ...], fields: tuple[str, ...] = ()) -> dict[str, Any]:
    """Values of `--set`: ['model.dim=128', 'seed=3'] -> {'model': {'dim': 128}, 'seed': 3}.

    Raises an error for a section not in `sections` or a top-level field not in `fields`. Values are parsed by
    `spec.literal`.
    """
    found: dict[str, Any] = {section: {} for section in sections}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if equals and section in fields and not dot:
            found[section] = literal(value.strip())
        elif not (equals and dot and key):
            raise FavoritError(
                f"--set {setting!r} is not valid: write --set section.key=value, "
                f"for example --set {sections[0]}.dim=128"
            )
        elif section not in sections:
            raise unknown("section in --set", section, sections)
        else:
            found[section][key] = literal(value.strip())
    return found
