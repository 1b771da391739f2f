"""Colors, shapes and dashes of names."""

from __future__ import annotations

from favorit.charts.palette import COLORS, FIXED, colors, looks


def test_fixed_colors_do_not_depend_on_other_names() -> None:
    for names in (["new", "favor", "relu"], ["relu(m=64)", "new", "favor(m=64)"]):
        found = colors(names)
        assert list(found) == names
        assert {name.partition("(")[0]: color for name, color in found.items() if name != "new"} == {
            "favor": FIXED["favor"],
            "relu": FIXED["relu"],
        }
        assert found["new"] not in (FIXED["favor"], FIXED["relu"])


def test_names_with_the_same_fixed_color_have_different_colors() -> None:
    found = colors(["favor", "all_performer", "relu", "relu(m=64)"])
    assert len(set(found.values())) == 4
    assert found["favor"] == FIXED["favor"]


def test_colors_repeat_if_there_are_more_names() -> None:
    names = [f"name {number}" for number in range(len(COLORS) + 2)]
    found = colors(names)
    assert list(found.values()) == [*COLORS, *COLORS[:2]]


def test_mixers_that_differ_in_parameters_share_a_color() -> None:
    found = looks(["softmax", "relu", "relu(m=64)", "favor(m=64)"])
    assert {name: look.color for name, look in found.items()} == {
        "softmax": FIXED["softmax"],
        "relu": FIXED["relu"],
        "relu(m=64)": FIXED["relu"],
        "favor(m=64)": FIXED["favor"],
    }
    assert found["relu"].shape != found["relu(m=64)"].shape
    assert found["relu"].dash != found["relu(m=64)"].dash
    assert found["favor(m=64)"] == looks(["favor(m=64)"])["favor(m=64)"], "the same in every figure"
