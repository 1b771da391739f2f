"""Layouts: the mixer of each layer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases_model import LAYOUTS as CASES
from checks_model import assert_complete
from favorit import FavoritError, create_model
from favorit.model import LAYOUTS
from favorit.model.layout import layers

PERFORMER = "relu(m=8)"
LETTERS = {"S": "softmax", "P": PERFORMER}


def named(layout: str, depth: int, performer: str = PERFORMER) -> list[str]:
    return [str(spec) for spec in layers(layout, performer, depth)]


def test_every_layout_has_an_entry():
    assert_complete(CASES, LAYOUTS)


@pytest.mark.parametrize(
    ("layout", "depth", "letters"), [(name, *item) for name, table in CASES.items() for item in table.items()]
)
def test_named_layout_at_even_and_odd_depths_has_the_expected_layers(layout, depth, letters):
    assert named(layout, depth) == [LETTERS[letter] for letter in letters]


@settings(max_examples=30)
@given(layout=st.sampled_from(list(CASES)), depth=st.integers(1, 40))
def test_named_layout_fits_every_depth_with_balanced_halves(layout, depth):
    found = named(layout, depth)
    assert len(found) == depth
    assert set(found) <= set(LETTERS.values())
    if not layout.startswith("all"):
        assert abs(found.count(PERFORMER) - found.count("softmax")) <= depth % 2


@pytest.mark.parametrize(
    ("pattern", "depth", "expected"),
    [
        ("softmax", 3, ["softmax"] * 3),
        ("relu(m=64)|softmax", 4, ["relu(m=64)", "softmax"] * 2),
        ("relu(m=64)*3|softmax*3", 6, ["relu(m=64)"] * 3 + ["softmax"] * 3),
        ("(relu|softmax)*2|none", 5, ["relu", "softmax", "relu", "softmax", "none"]),
        ("favor(m=16)|favor(m=32)|exp(m=8)|learned", 4, ["favor(m=16)", "favor(m=32)", "exp(m=8)", "learned"]),
        (" relu ( m = 64 ) | softmax ", 2, ["relu(m=64)", "softmax"]),
        (" intertwined ", 2, [PERFORMER, "softmax"]),
    ],
)
def test_pattern_is_tiled_over_the_depth(pattern, depth, expected):
    assert named(pattern, depth) == expected


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("favor(128)", "favor"),
        ("favor(features=positive, m=64)", "favor(m=64)"),
        ("favor(norm=regular, m=64)", "favor(m=64, norm=regular)"),
        ("relu(m=None, causal=False)", "relu"),
        ("favor(features='hyperbolic')", "favor(features=hyperbolic)"),
    ],
)
def test_layers_are_canonical_specs(written, canonical):
    assert named(written, 1) == [canonical]
    assert named("all_performer", 1, written) == [canonical]


def test_each_layer_has_its_own_kernel_and_m():
    model = create_model("vit-64", layout="favor(m=16)|favor(m=48)|relu(m=8)|softmax", seed=0)
    mixers = [block.attention.branch.mixer for block in model.blocks]
    assert [type(mixer).__name__ for mixer in mixers] == ["Linear"] * 3 + ["Softmax"]
    assert [mixer.kernel.projection.rows.shape[0] for mixer in mixers[:3]] == [16, 48, 8]


@pytest.mark.parametrize(
    ("layout", "performer", "depth", "words"),
    [
        ("relu|softmax", PERFORMER, 3, ["layout='relu|softmax'", "depth=3", "2 layers", "multiple"]),
        ("softmax*5", PERFORMER, 4, ["layout='softmax*5'", "depth=4", "5 layers"]),
        ("softmax*0", PERFORMER, 4, ["'softmax*0'"]),
        ("softmax*10000000000", PERFORMER, 4, ["'softmax*10000000000'", "more than 1,000 components"]),
        ("relu||softmax", PERFORMER, 4, ["'relu||softmax'"]),
        (
            "inter_twined",
            PERFORMER,
            4,
            ["unknown layout or mixer 'inter_twined'", "'intertwined'", "all_standard", "softmax"],
        ),
        ("rellu|softmax", PERFORMER, 4, ["'rellu'", "'relu'"]),
        ("relu(n=3)|softmax", PERFORMER, 4, ["unknown parameter of relu 'n'", "causal"]),
        ("relu(m=0)|softmax", PERFORMER, 4, ["relu", "m=0", "at least 1"]),
        ("all_standard", "reelu", 4, ["unknown mixer 'reelu'", "'relu'"]),
        ("all_performer", "relu|softmax", 4, ["'relu|softmax'"]),
        ("all_performer", "favor(m=1.5)", 4, ["favor", "m=1.5", "integer"]),
    ],
)
def test_invalid_layout_is_named(layout, performer, depth, words):
    with pytest.raises(FavoritError) as error:
        layers(layout, performer, depth)
    assert all(word in str(error.value) for word in words), str(error.value)
