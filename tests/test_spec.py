"""Specs: parsing, errors, and the builders of a registry."""

from __future__ import annotations

import keyword
import string
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from favorit.errors import FavoritError, unknown
from favorit.spec import (
    Parameter,
    PositiveFloat,
    PositiveInt,
    Probability,
    Registry,
    Spec,
    literal,
    parameters_of,
    parse,
    parse_pattern,
    parse_sum,
)

words = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=12).filter(
    lambda word: word.isidentifier() and not keyword.iskeyword(word)
)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), floats, st.text(max_size=12), st.sampled_from(keyword.kwlist)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3), max_leaves=6
)
specs = st.builds(Spec, words, st.lists(values, max_size=3).map(tuple), st.dictionaries(words, values, max_size=4))


@settings(max_examples=200)
@given(specs)
def test_spec_survives_a_round_trip_through_text(spec):
    assert parse(str(spec)) == spec


@settings(max_examples=50)
@given(st.lists(specs, min_size=1, max_size=4))
def test_sums_and_patterns_survive_a_round_trip_through_text(parts):
    assert parse_sum(" + ".join(map(str, parts))) == parts
    assert parse_pattern("|".join(map(str, parts))) == parts


@settings(max_examples=200)
@given(st.text(max_size=30) | st.text("abm12(),=*+|.'\" _[]{}", max_size=20))
def test_any_text_is_a_spec_or_a_one_line_error(text):
    for read in (parse, parse_sum, parse_pattern):
        message = ""
        try:
            read(text)
        except FavoritError as error:
            message = str(error)
        assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("relu", Spec("relu")),
        ("  relu ( ) ", Spec("relu")),
        ("relu(m=64)", Spec("relu", (), {"m": 64})),
        ("favor(m=128, features=hyperbolic)", Spec("favor", (), {"m": 128, "features": "hyperbolic"})),
        ("patch(4)", Spec("patch", (4,))),
        ("patch((2, 4), crop=True)", Spec("patch", ((2, 4),), {"crop": True})),
        ("mlp(2048, 1024)", Spec("mlp", (2048, 1024))),
        ("elu(alpha=-0.5, eps=1e-6)", Spec("elu", (), {"alpha": -0.5, "eps": 1e-6})),
        ("a(b='c d', e=None, f=[1, 2])", Spec("a", (), {"b": "c d", "e": None, "f": [1, 2]})),
        ("none", Spec("none")),
        ("None", Spec("none")),
    ],
)
def test_spec_is_parsed(text, spec):
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("text", "names"),
    [("a*2|b", "aab"), ("a|b*3", "abbb"), ("(a|b)*2|c", "ababc"), ("a*2*2", "aaaa"), ("a | b | a", "aba")],
)
def test_pattern_is_expanded(text, names):
    assert [spec.name for spec in parse_pattern(text)] == list(names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "relu(",
        "relu)",
        "relu(m=)",
        "relu(m=64",
        "relu m",
        "relu(m=64, m=32)",
        "relu(m=64)(m=32)",
        "relu(**{'m': 64})",
        "relu(*[64])",
        "relu(m=f(1))",
        "relu(m=[x for x in y])",
        "relu(m=1+1)",
        "relu(m=a.b)",
        "relu(m={[]: 1})",
        "relu(m=lambda: 0)",
        "relu(m:=3)",
        "a.b",
        "a.b(c=1)",
        "a[0]",
        "lambda: 0",
        "1",
        "'relu'",
        "-relu",
        "relu; softmax",
        "import os",
        "relu\nsoftmax",
        "__import__('os').system('true')",
        "relu(m=__import__('os').getpid())",
        "(" * 500 + ")" * 500,
        "a(" * 500 + ")" * 500,
        "relu(m=" + "-" * 5000 + "1)",
        "relu(m=" + "9" * 5000 + ")",
        "relu(m='\0')\0",
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("read", [parse, parse_sum, parse_pattern])
def test_invalid_syntax_is_one_line(read, text):
    with pytest.raises(FavoritError) as error:
        read(text)
    assert "\n" not in str(error.value)
    assert "cannot read" in str(error.value)


@pytest.mark.parametrize("wrong", [None, 5, b"relu", ["relu"]])
def test_spec_that_is_not_text_is_an_error(wrong):
    with pytest.raises(FavoritError, match="a spec is text"):
        parse(wrong)


@pytest.mark.parametrize(
    "text", ["a*0", "a*-1", "2*a", "a*2.5", "a*b", "a*(2|3)", "a*10000000000", "a|", "|a", "a||b", "a-b", "a&b", "a/2"]
)
def test_invalid_pattern_is_an_error(text):
    with pytest.raises(FavoritError, match="cannot read"):
        parse_pattern(text)


@pytest.mark.parametrize("text", ["a+", "a-b", "a*2", "a+1", "a|b"])
def test_invalid_sum_is_an_error(text):
    with pytest.raises(FavoritError, match="cannot read"):
        parse_sum(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128", 128),
        ("-1.5e-3", -1.5e-3),
        ("True", True),
        ("None", None),
        ("(2, 4)", (2, 4)),
        ("'28'", "28"),
        ("relu(m=64)|softmax", "relu(m=64)|softmax"),
        ("true", True),
        ("false", False),
        ("none", "none"),
        ("__import__('os')", "__import__('os')"),
        ("{[]: 1}", "{[]: 1}"),
        ("-" * 100_000 + "1", "-" * 100_000 + "1"),
        ("", ""),
    ],
    ids=lambda text: str(text)[:20],
)
def test_literal_parses_literals_and_keeps_other_text(text, value):
    assert literal(text) == value
    assert type(literal(text)) is type(value)


@pytest.fixture
def registry() -> Registry[dict]:
    dishes: Registry[dict] = Registry("dish", context=("size", "seed"))

    @dishes.register("soup")
    def soup(
        size: int,
        bowls: PositiveInt = 1,
        salt: Probability = 0.5,
        heat: PositiveFloat = 2.0,
        kind: Literal["clear", "thick"] = "clear",
        hot: bool = True,
    ) -> dict:
        """Boils.

        At length.
        """
        return dict(size=size, bowls=bowls, salt=salt, heat=heat, kind=kind, hot=hot)

    @dishes.register("stack", rest="layers")
    def stack(layers: tuple[PositiveInt, ...] = (1,)) -> dict:
        return dict(layers=layers)

    return dishes


def test_builder_receives_parameters_defaults_and_its_context(registry):
    built = registry.build("soup(3, kind=thick)", size=7, seed=1)
    assert built == dict(size=7, bowls=3, salt=0.5, heat=2.0, kind="thick", hot=True)
    assert registry.build(Spec("soup", (), {"hot": False}), size=1)["hot"] is False
    assert registry.build("stack(4, 5)") == {"layers": (4, 5)}
    assert registry.build("stack") == {"layers": (1,)}
    assert registry.build("stack(layers=(6,))") == {"layers": (6,)}


def test_registry_lists_entries_with_signature_and_summary(registry):
    assert list(registry) == ["soup", "stack"]
    assert "soup" in registry
    assert "souup" not in registry
    assert registry["soup"].signature == "soup(bowls=1, salt=0.5, heat=2.0, kind=clear, hot=True)"
    assert registry["soup"].summary == "Boils."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sop", ["unknown dish 'sop'", "did you mean 'soup'?", "known: soup, stack"]),
        ("__import__('os')", ["unknown dish '__import__'"]),
        ("eval('1')", ["unknown dish 'eval'"]),
        ("soup(bowl=3)", ["unknown parameter of soup 'bowl'", "did you mean 'bowls'?", "salt"]),
        ("soup(size=3)", ["unknown parameter of soup 'size'"]),
        ("soup(seed=3)", ["unknown parameter of soup 'seed'"]),
        ("soup(bowls=0)", ["soup: bowls=0 is not valid", "at least 1"]),
        ("soup(bowls=2.0)", ["bowls=2.0", "integer"]),
        ("soup(bowls='2')", ["bowls='2'", "integer"]),
        ("soup(bowls=True)", ["bowls=True", "integer"]),
        ("soup(bowls=many)", ["bowls=many", "integer"]),
        ("soup(bowls=None)", ["bowls=None", "integer"]),
        ("soup(salt=1)", ["salt=1", "below 1"]),
        ("soup(salt=-0.1)", ["salt=-0.1", "at least 0"]),
        ("soup(heat=0)", ["heat=0", "above 0"]),
        ("soup(heat=1e999)", ["heat=", "finite"]),
        ("soup(heat=warm)", ["heat=warm", "number"]),
        ("soup(kind=thin)", ["kind=thin", "'clear' or 'thick'"]),
        ("soup(hot=perhaps)", ["hot=perhaps", "True or False"]),
        ("soup(1, bowls=2)", ["bowls is given twice"]),
        ("soup(bowls=1, bowls=2)", ["bowls is given twice"]),
        ("soup(1, 0.1, 1.0, clear, True, 9)", ["soup takes at most 5 values", "soup(bowls=1, "]),
        ("stack(1, 0)", ["stack: layers=(1, 0)", "at least 1"]),
        ("stack(1, layers=(2,))", ["layers is given twice"]),
    ],
)
def test_mistake_names_parameter_value_and_valid_choices(registry, text, words):
    with pytest.raises(FavoritError) as error:
        registry.build(text, size=1)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_missing_parameter_is_named():
    registry = Registry("step")
    registry.add(
        "resize", lambda size, smooth=True: (size, smooth), {"size": Parameter(int), "smooth": Parameter(bool, True)}
    )
    with pytest.raises(FavoritError, match=r"^resize\(smooth=False\): size is missing: resize\(size, smooth=True\)$"):
        registry.build("resize(smooth=False)")
    assert registry.build("resize(4)") == (4, True)


def test_registering_a_name_twice_is_an_error(registry):
    with pytest.raises(FavoritError, match="the dish 'soup' is registered twice"):
        registry.add("soup", dict)


def test_favorit_error_is_a_value_error():
    assert issubclass(FavoritError, ValueError)


def test_unknown_gives_no_hint_without_a_near_match():
    assert str(unknown("dish", "xyz", ["soup", "stack"])) == "unknown dish 'xyz': known: soup, stack"
    assert str(unknown("dish", "xyz", [])) == "unknown dish 'xyz': known: none"


def test_parameters_exclude_variadic_and_left_out_ones():
    def builder(a: int, *rest: int, b: str = "x", **more: float) -> None: ...

    assert list(parameters_of(builder, leave_out=("a",))) == ["b"]
    assert parameters_of(builder)["b"].default == "x"
