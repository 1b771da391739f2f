"""The catalog: every listed component builds with its defaults."""

from __future__ import annotations

import warnings

import pytest

import favorit
from favorit.catalog import KINDS, describe
from favorit.data import AUGMENTS, PREPROCESSES
from favorit.model import HEADS, LAYOUTS, PRESETS, STEMS, preset
from favorit.position import build_position
from favorit.training.optim import OPTIMIZERS, SCHEDULES

SHAPE = dict(heads=2, head_dim=8)
BUILDERS = {
    "mixers": lambda name: favorit.build_mixer(name, **SHAPE, tokens=16),
    "kernels": lambda name: favorit.build_mixer(name, **SHAPE),
    "positions": lambda name: build_position(name, dim=16, **SHAPE),
    "stems": lambda name: STEMS.build(name, image_channels=3, dim=16, image_size=(32, 32)),
    "heads": lambda name: HEADS.build(name, dim=16, classes=3, tokens=4, dropout=0.0),
    "locals": lambda name: favorit.Attention(16, **SHAPE, local=name),
    "layouts": lambda name: favorit.create_model("vit-64", layout=name),
    "presets": preset,
}
# Components of data and training. Some have required parameters.
TRAINING = {"optimizers": OPTIMIZERS, "schedules": SCHEDULES, "augments": AUGMENTS, "preprocesses": PREPROCESSES}
NAMES = [(kind, name) for kind in BUILDERS for name in favorit.list_components(kind)]


def test_kinds_are_model_components_training_components_and_fields():
    assert set(KINDS) == {*BUILDERS, *TRAINING, "fields"}


@pytest.mark.parametrize("kind", TRAINING)
def test_components_of_training_are_listed_with_their_parameters(kind):
    assert favorit.list_components(kind) == sorted(TRAINING[kind])
    for name in favorit.list_components(kind):
        assert describe(kind, name).startswith(f"{name}(")


def test_fields_are_listed_with_their_defaults_and_descriptions():
    config = favorit.RunConfig()
    for name in favorit.list_components("fields"):
        section, _, key = name.partition(".")
        description, _, default = describe("fields", name).partition(" Default: ")
        assert default == repr(getattr(getattr(config, section), key))
        assert description.endswith("."), f"{name} has no description in favorit.fields.DESCRIPTIONS"
    assert len(favorit.list_components("fields")) == sum(
        len(type(part).model_fields) for part in (config.model, config.data, config.train)
    )


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_listed_component_builds_with_its_defaults_and_has_a_description(kind, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BUILDERS[kind](name) is not None
    assert len(describe(kind, name)) > 10


def test_every_kernel_is_a_mixer():
    assert set(favorit.list_components("kernels")) < set(favorit.list_components("mixers"))


def test_core_components_are_listed():
    expected = {
        "mixers": "softmax linformer uniform none",
        "kernels": "relu elu gelu exp favor learned mixture sincos",
        "positions": "none learned sincos2d rope2d irpe_gate string_gate",
        "stems": "patch conv resnet",
        "heads": "cls mean seqpool mlp",
        "locals": "dwconv",
        "layouts": "all_standard all_performer intertwined performer_first standard_first",
    }
    for kind, names in expected.items():
        assert set(names.split()) <= set(favorit.list_components(kind))
    assert favorit.list_components("layouts") == list(LAYOUTS)
    assert favorit.list_components("presets") == list(PRESETS)


def test_unknown_kind_names_the_nearest():
    with pytest.raises(
        favorit.FavoritError,
        match=r"unknown kind of component 'mixer': did you mean 'mixers'\? known: augments, fields",
    ):
        favorit.list_components("mixer")


def test_package_exports_its_public_names_only():
    assert {"create_model", "Attention", "build_mixer", "ModelConfig", "list_components", "FavoritError", "ViT"} <= set(
        dir(favorit)
    )
    assert all(getattr(favorit, name) is not None for name in favorit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = favorit.nonsense
