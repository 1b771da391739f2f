"""Dotted fields: listing, nesting, reading and replacing them, and `--set`."""

from __future__ import annotations

from typing import Any

import pytest

from favorit import FavoritError, ModelConfig, RunConfig
from favorit.config import SECTIONS, TrainConfig
from favorit.fields import (
    DEFAULTS,
    fields_set,
    flatten,
    get_field,
    nest,
    parse_settings,
    replace_fields,
    split_parameter,
)

CHANGES: dict[str, Any] = {"model.dim": 96, "train.lr": 0.5, "train.epochs": 3, "seed": 7, "scale": "small"}


def test_defaults_are_the_values_of_the_default_configuration():
    config = RunConfig()
    assert {name: get_field(config, name) for name in DEFAULTS} == DEFAULTS
    assert {name for name in DEFAULTS if "." not in name} == {"seed", "scale"}
    assert sum(name.startswith("model.") for name in DEFAULTS) == len(ModelConfig.model_fields)


def test_nest_groups_fields_by_section_and_flatten_is_its_inverse():
    nested = nest(CHANGES)
    assert nested == {
        "model": {"dim": 96},
        "data": {},
        "train": {"lr": 0.5, "epochs": 3},
        "seed": 7,
        "scale": "small",
    }
    assert flatten(nested) == CHANGES
    assert nest({}) == {section: {} for section in SECTIONS}


def test_nest_with_unknown_section_raises_key_error():
    with pytest.raises(KeyError, match="trian"):
        nest({"trian.lr": 0.1})


def test_replace_fields_changes_these_fields_only():
    base = RunConfig(train=TrainConfig(warmup=2.0), seed=1)
    changed = replace_fields(base, CHANGES)
    assert {name: get_field(changed, name) for name in CHANGES} == CHANGES
    unchanged = DEFAULTS.keys() - CHANGES.keys()
    assert {name: get_field(changed, name) for name in unchanged} == {name: get_field(base, name) for name in unchanged}
    assert base.seed == 1
    assert replace_fields(base, {}) == base


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.lrr": 0.1}, "unknown field of TrainConfig 'lrr': did you mean 'lr'"),
        ({"sed": 3}, "unknown field of RunConfig 'sed': did you mean 'seed'"),
        ({"model.dim": 0}, "dim=0 is not valid"),
        ({"data.validation": 0}, "data.validation=0 leaves no images to select an epoch with"),
    ],
)
def test_replace_fields_checks_names_and_values(changes: dict[str, Any], message: str):
    with pytest.raises(FavoritError, match=message):
        replace_fields(RunConfig(), changes)


def test_fields_set_are_those_given_explicitly_even_if_equal_to_the_default():
    config = RunConfig(model=ModelConfig(dim=DEFAULTS["model.dim"]), train=TrainConfig(lr=0.5), seed=3)
    assert fields_set(config) == {"model.dim": DEFAULTS["model.dim"], "train.lr": 0.5, "seed": 3}
    assert fields_set(RunConfig()) == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train.lr", ("train.lr", "")),
        ("seed", ("seed", "")),
        ("model.performer.m", ("model.performer", "m")),
        ("model.stem.a.b", ("model.stem", "a.b")),
    ],
)
def test_split_parameter_separates_field_and_component_parameter(name: str, expected: tuple[str, str]):
    assert split_parameter(name) == expected


def test_settings_are_literals_by_section():
    settings = [
        "model.dim=128",
        "model.layout=relu(m=64)|softmax",
        "model.qk_norm=True",
        "model.local=None",
        "model.image_size = (28, 28)",
    ]
    expected = {"dim": 128, "layout": "relu(m=64)|softmax", "qk_norm": True, "local": None, "image_size": (28, 28)}
    assert parse_settings(settings, ("model", "train")) == {"model": expected, "train": {}}


def test_settings_accept_listed_top_level_fields_only():
    assert parse_settings(["seed=3"], ("model",), ("seed",)) == {"model": {}, "seed": 3}
    with pytest.raises(FavoritError, match=r"--set 'seed=3' is not valid: write --set section\.key=value"):
        parse_settings(["seed=3"], ("model",))


def test_settings_with_unknown_section_name_the_nearest():
    with pytest.raises(FavoritError, match="unknown section in --set 'modl': did you mean 'model'"):
        parse_settings(["modl.dim=3"], ("model", "train"))
