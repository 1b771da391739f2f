"""Texts of any content and size: only FavoritError escapes, in one line, and reading them takes bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from favorit import FavoritError, ModelConfig, create_model
from favorit.attention import MIXERS
from favorit.data import build_preprocess
from favorit.data.augment import build_augment
from favorit.grammar import MAX_CHARACTERS, MAX_DEPTH
from favorit.spec import MAX_COMPONENTS, literal, parse, parse_pattern, parse_sum

READERS = (parse, parse_sum, parse_pattern)
SECONDS = 2.0  # a hang takes minutes; the slowest text here takes 0.05 s
# Pieces of specs, in any order, are closer to valid than random characters.
PIECES = st.sampled_from(
    [
        *"()[]{},|+*-=.~'\"\\ \n\0",
        *("**", "relu", "m", "softmax", "not ", "lambda:", " if ", " else ", "1", "9" * 400, "1e999", "1j", "True"),
        *("None", "'x'", "b'x'", "\u202e", "\x1b[31m", "\ud800", "# ", "f'{", "a" * 50),
    ]
)
TEXTS = st.text() | st.lists(PIECES, max_size=60).map("".join) | st.builds(str.__mul__, PIECES, st.integers(0, 3000))


def error_of(read: Callable[[str], object], text: str) -> str:
    """The error for a text; empty if it is valid."""
    try:
        read(text)
    except FavoritError as error:
        return str(error)
    return ""


@settings(max_examples=400)
@given(TEXTS)
def test_any_text_gives_components_or_a_line(text):
    for read in READERS:
        start = time.perf_counter()
        message = error_of(read, text)
        assert "\n" not in message
        assert len(message) < 500
        assert time.perf_counter() - start < SECONDS
    literal(text)


@settings(max_examples=400)
@given(TEXTS)
def test_any_text_as_a_field_of_a_model_is_a_line(text):
    for field in ("layout", "performer", "position", "stem", "head", "local"):
        with pytest.raises(FavoritError) as error:
            create_model(ModelConfig(**{field: f"{text}]"}))
        assert "\n" not in str(error.value)


DEEP = {
    "brackets": lambda n: f"relu(m={'(' * n}1{')' * n})",
    "unary minus": lambda n: f"relu(m={'-' * n}1)",
    "lists": lambda n: f"relu(m={'[' * n}{']' * n})",
    "calls": lambda n: f"{'f(' * n}{')' * n}",
    "not": lambda n: f"relu(m={'not ' * n}1)",
    "powers": lambda n: f"relu(m={'2**' * n}2)",
    "attributes": lambda n: f"relu(m=a{'.a' * n})",
    "nested patterns": lambda n: f"{'(' * n}a{'|b)' * n}",
}


@pytest.mark.parametrize("depth", [30, 600, 2000])
@pytest.mark.parametrize("nest", DEEP.values(), ids=DEEP)
def test_deep_text_names_the_bound(nest, depth):
    for read in READERS:
        with pytest.raises(FavoritError, match=f"it is nested more than {MAX_DEPTH} levels deep"):
            read(nest(depth))


@pytest.mark.parametrize("operator", ["|", "+", "*"])
def test_long_chain_is_not_deep(operator):
    text = operator.join(["relu"] * 900)
    if operator == "|":
        assert len(parse_pattern(text)) == 900
    elif operator == "+":
        assert len(parse_sum(text)) == 900
    else:
        with pytest.raises(FavoritError, match="cannot read"):
            parse_pattern(text)


def test_long_text_names_the_bound():
    with pytest.raises(FavoritError, match=f"it has 10,001 characters, at most {MAX_CHARACTERS:,} are valid"):
        parse("a" * 10_001)


@pytest.mark.parametrize(
    "text",
    ["a*10000*10000*100", "a*10000000000", "(a|b)*501", "((a*10)*10)*11", "a" + "*10" * 2000, "|".join("a" * 1001)],
)
def test_pattern_of_too_many_components_names_the_bound(text):
    with pytest.raises(FavoritError, match=f"it has more than {MAX_COMPONENTS:,} components"):
        parse_pattern(text)


def test_pattern_may_repeat_repeated_components():
    assert [str(spec) for spec in parse_pattern("(a*2|b)*2|c")] == ["a", "a", "b", "a", "a", "b", "c"]
    assert len(parse_pattern("a*10*10*10")) == MAX_COMPONENTS


def test_pipelines_of_too_many_steps_name_the_bound():
    with pytest.raises(FavoritError, match="more than 1,000 components"):
        build_augment("flip*10000*10000*100")
    with pytest.raises(FavoritError, match="more than 1,000 components"):
        build_preprocess("resize(8)*10000*10000", (0.5,), (0.5,))


@pytest.mark.parametrize(
    ("field", "value", "bound"),
    [
        ("depth", 10**9, "1000"),
        ("image_size", 10**9, "16384"),
        ("channels", 10**9, "65536"),
        ("classes", 10**9, "1000000"),
        ("dim", 10**9, "65536"),
        ("heads", 10**9, "65536"),
        ("head_dim", 10**9, "65536"),
        ("mlp_dim", 10**9, "1000000"),
        pytest.param("depth", 10**5000, "1000", id="digits"),
    ],
)
def test_unbounded_size_of_a_model_names_the_bound(field, value, bound):
    with pytest.raises(FavoritError, match=f"{field}=.* is not valid: .*at most {bound}") as error:
        ModelConfig(**{field: value})
    assert len(str(error.value)) < 300


def test_count_in_a_spec_is_bounded():
    with pytest.raises(FavoritError, match=r"m=10000000000 is not valid: .*at most 1000000000"):
        MIXERS.canonical("relu(m=10000000000)")


@pytest.mark.parametrize("stem", ["resnet(blocks=1000000000)", "patch(1000000000)", "conv(channels=(1000000000,))"])
def test_size_in_a_stem_is_bounded(stem):
    with pytest.raises(FavoritError, match="at most"):
        create_model(ModelConfig(stem=stem))


def test_integer_with_more_digits_than_python_writes_is_rejected():
    with pytest.raises(FavoritError, match="cannot read the value"):
        parse(f"favor(m=0x{'f' * 5000})")
