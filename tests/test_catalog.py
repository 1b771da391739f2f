"""What there is: every listed name builds with its defaults."""

from __future__ import annotations

import warnings

import pytest

import favorit
from favorit.catalog import KINDS, written
from favorit.model import HEADS, LAYOUTS, PRESETS, STEMS, preset
from favorit.position import build_position

SHAPE = dict(heads=2, head_dim=8)
BUILDERS = {
    "mixers": lambda name: favorit.build_mixer(name, **SHAPE, tokens=16),
    "kernels": lambda name: favorit.build_mixer(name, **SHAPE),
    "positions": lambda name: build_position(name, dim=16, **SHAPE),
    "stems": lambda name: STEMS.build(name, image_channels=3, dim=16, image_size=(32, 32)),
    "heads": lambda name: HEADS.build(name, dim=16, classes=3, tokens=4, dropout=0.0),
    "layouts": lambda name: favorit.create_model("hybrid", layout=name),
    "presets": preset,
}
NAMES = [(kind, name) for kind in KINDS for name in favorit.list_components(kind)]


def test_kinds_are_the_axes():
    assert set(KINDS) == set(BUILDERS) == {"mixers", "kernels", "positions", "stems", "heads", "layouts", "presets"}


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_listed_name_builds_with_its_defaults_and_says_what_it_is(kind, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BUILDERS[kind](name) is not None
    assert len(written(kind, name)) > 10


def test_every_kernel_is_a_mixer():
    assert set(favorit.list_components("kernels")) < set(favorit.list_components("mixers"))


def test_names_are_those_of_the_design():
    expected = {
        "mixers": "softmax linformer uniform none",
        "kernels": "relu elu gelu exp favor learned mixture",
        "positions": "none learned sincos2d rope2d irpe_gate string_gate",
        "stems": "patch conv resnet",
        "heads": "cls mean seqpool mlp",
        "layouts": "all_standard all_performer intertwined performer_first standard_first",
    }
    for kind, names in expected.items():
        assert set(names.split()) <= set(favorit.list_components(kind))
    assert favorit.list_components("layouts") == list(LAYOUTS)
    assert favorit.list_components("presets") == list(PRESETS)


def test_unknown_kind_is_named():
    with pytest.raises(favorit.FavoritError, match=r"unknown kind of component 'mixer': did you mean 'mixers'\? known: heads, kernels"):
        favorit.list_components("mixer")


def test_package_offers_its_public_names_and_no_others():
    assert {"create_model", "Attention", "build_mixer", "ModelConfig", "list_components", "FavoritError", "ViT"} <= set(dir(favorit))
    assert all(getattr(favorit, name) is not None for name in favorit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = favorit.nonsense
