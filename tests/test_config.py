"""Configurations: frozen, strict, without unknown fields, and identified by their content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from favorit import FavoritError, ModelConfig
from favorit.config import Config, TrainConfig, identify
from favorit.model import PRESETS, preset

FIELDS = """image_size channels classes stem dim depth heads head_dim mlp_dim layout performer position head norm act
dropout emb_dropout drop_path qkv_bias out_bias qk_norm local"""

# Changing one of these orphans every stored run of such a model. Do it only on purpose, with an entry in CHANGELOG.md.
IDENTIFIERS: dict[str, tuple[dict, str]] = {
    "default": (dict(), "44136fa355b3678a"),
    "image size": (dict(image_size=28, channels=1), "e4f269e2af2da92f"),
    "non-square": (dict(image_size=(16, 48)), "b250a65d8215989d"),
    "imagenet": (
        dict(image_size=224, classes=1000, stem="patch(8)", dim=192, depth=8, heads=3, mlp_dim=768),
        "a165d0fef817a443",
    ),
    "performer first": (dict(layout="performer_first", performer="relu(m=64)"), "4c5a409cbd015c52"),
    "pattern": (dict(layout="relu(m=64)|softmax"), "6dd078baa6b1d85c"),
    "head width": (dict(dim=96, heads=6, head_dim=64, qkv_bias=False, out_bias=False), "86b12b338263d53c"),
    "position": (dict(position="learned+rope2d"), "5cc521d2c60c8c7b"),
    "sincos and mean": (dict(position="sincos2d", head="mean"), "b272dcf236bbbf54"),
    "mlp head": (dict(stem="patch(6, crop=True)", head="mlp(2048, 1024)"), "5c38f8b242186817"),
    "convolution": (
        dict(stem="conv(act=relu, tokens=1)", norm="double", mlp_dim=0, position="none", head="mean"),
        "eb7fa13ca31d483c",
    ),
    "dropout": (dict(dropout=0.1, emb_dropout=0.2, drop_path=0.05), "fd8a33bf17f9b14b"),
    "extras": (dict(qk_norm=True, local="dwconv(3)", act="silu"), "f9478a6f665c5851"),
}


def test_model_config_has_the_documented_fields():
    assert set(ModelConfig.model_fields) == set(FIELDS.split())


def test_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        ModelConfig().dim = 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(depht=2), ["unknown field of ModelConfig 'depht'", "did you mean 'depth'?", "known: act, channels"]),
        (dict(xyz=2), ["'xyz'", "known:"]),
        (dict(dim="64"), ["dim='64' is not valid", "integer"]),
        (dict(dim=True), ["dim=True", "integer"]),
        (dict(dim=64.0), ["dim=64.0", "integer"]),
        (dict(dim=0), ["dim=0", "at least 1"]),
        (dict(dim=None), ["dim=None", "integer"]),
        (dict(depth=-1), ["depth=-1", "at least 1"]),
        (dict(mlp_dim=-1), ["mlp_dim=-1", "at least 0"]),
        (dict(mlp_dim=False), ["mlp_dim=False", "integer"]),
        (dict(channels=0), ["channels=0"]),
        (dict(classes="ten"), ["classes='ten'"]),
        (dict(head_dim=0), ["head_dim=0", "at least 1"]),
        (dict(head_dim="x"), ["head_dim='x'", "integer"]),
        (dict(image_size=0), ["image_size=0"]),
        (dict(image_size=True), ["image_size=True"]),
        (dict(image_size="32"), ["image_size='32'"]),
        (dict(image_size=(32,)), ["image_size=(32,)"]),
        (dict(image_size=(32, 32, 3)), ["image_size=(32, 32, 3)", "(rows, columns)"]),
        (dict(image_size=(32, 0)), ["image_size=0", "at least 1"]),
        (dict(dropout=1.0), ["dropout=1.0", "below 1"]),
        (dict(emb_dropout=-0.1), ["emb_dropout=-0.1", "at least 0"]),
        (dict(drop_path=float("nan")), ["drop_path=nan"]),
        (dict(dropout="some"), ["dropout='some'", "number"]),
        (dict(norm="per"), ["norm='per'", "'pre', 'post', 'double' or 'double_inner'"]),
        (dict(act="tanh"), ["act='tanh'", "'gelu', 'relu', 'elu' or 'silu'"]),
        (dict(qkv_bias="perhaps"), ["qkv_bias='perhaps'", "True or False"]),
        (dict(layout=None), ["layout=None", "text"]),
        (dict(stem=4), ["stem=4", "text"]),
        (dict(heads=7), ["heads=7 does not divide dim=64", "head_dim"]),
        (dict(dim="a", depth="b"), ["dim='a'", "depth='b'"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_mistake_names_field_value_and_valid_choices(values, words):
    for make in (ModelConfig, ModelConfig().replace):
        with pytest.raises(FavoritError) as error:
            make(**values)
        message = str(error.value)
        assert all(word in message for word in words), message
        assert "\n" not in message


@pytest.mark.parametrize(
    "value",
    [(), [], (1, -1), (1, float("nan")), (1, float("inf")), (0, 0), (1, "2"), (1, True), 1, 1.5, "yes", None],
    ids=str,
)
def test_invalid_class_weights_are_one_line(value):
    with pytest.raises(FavoritError) as error:
        TrainConfig(class_weights=value)
    assert str(error.value) == (
        f"class_weights={value!r} is not valid: False, True (inverse frequency), "
        "or a tuple with one weight for each class, none negative and not all 0"
    )


def test_class_weights_survive_a_round_trip_through_json():
    config = TrainConfig(class_weights=(1, 0, 1.5))
    assert config.class_weights == (1.0, 0.0, 1.5)
    assert TrainConfig(**json.loads(json.dumps(config.changed()))) == config


def test_heads_need_not_divide_dim_with_head_dim():
    assert ModelConfig(heads=7, head_dim=8).heads == 7


def test_integer_image_size_is_a_square():
    assert ModelConfig(image_size=28) == ModelConfig(image_size=(28, 28)) == ModelConfig(image_size=[28, 28])


def test_replace_changes_only_the_given_fields():
    config = ModelConfig(dim=96, heads=6)
    changed = config.replace(depth=2)
    assert (changed.dim, changed.heads, changed.depth, config.depth) == (96, 6, 2, 4)
    assert changed.replace(depth=4) == config
    assert type(changed) is ModelConfig


def test_changed_omits_defaults_that_were_given_explicitly():
    assert ModelConfig().changed() == {}
    assert ModelConfig(dim=64, layout="all_standard", dropout=0).changed() == {}
    assert ModelConfig(image_size=28, dim=32, mlp_dim=0).changed() == {"image_size": [28, 28], "dim": 32, "mlp_dim": 0}


@pytest.mark.parametrize("name", PRESETS)
def test_changed_survives_a_round_trip_through_json(name):
    config = preset(name)
    assert ModelConfig(**json.loads(json.dumps(config.changed()))) == config


def test_new_field_with_a_default_keeps_identifiers():
    class Old(Config):
        dim: int = 1

    class New(Config):
        dim: int = 1
        flavor: str = "plain"

    assert identify(Old(dim=2).changed()) == identify(New(dim=2).changed())
    assert identify(Old(dim=2).changed()) != identify(New(dim=2, flavor="sour").changed())


@pytest.mark.parametrize("case", IDENTIFIERS)
def test_identifiers_are_pinned(case):
    fields, expected = IDENTIFIERS[case]
    assert identify(ModelConfig(**fields).changed()) == expected


def test_pinned_identifiers_are_distinct():
    assert len({identifier for _, identifier in IDENTIFIERS.values()}) == len(IDENTIFIERS) >= 12


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25)
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=5), st.randoms())
def test_identifier_is_independent_of_the_order_of_keys(content, random):
    keys = list(content)
    random.shuffle(keys)
    assert identify({key: content[key] for key in keys}) == identify(content)
    assert len(identify(content)) == 16
    assert int(identify(content), 16) >= 0


def test_identifier_of_nan_is_an_error():
    with pytest.raises(ValueError, match="JSON"):
        identify({"a": float("nan")})
