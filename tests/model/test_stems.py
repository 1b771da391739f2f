"""Conformance of every registered stem: images to tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases_model import STEMS as CASES
from cases_model import Case
from checks_model import assert_complete, checks_in, conform, every, randn, same_state, scatter, unreached
from favorit import FavoritError, create_model
from favorit.grids import Grid
from favorit.model import STEMS
from favorit.model.stem import Stem

DIM, SIZE = 10, (12, 20)


def build(spec: str, size: Grid = SIZE, channels: int = 3) -> Stem:
    return STEMS.build(spec, image_channels=channels, dim=DIM, image_size=size).double()


def check_tokens_lie_on_the_grid(spec: str) -> None:
    """Each grid position has one token, and tokens have the model width."""
    stem = build(spec)
    tokens, grid = stem(randn(2, 3, *SIZE))
    assert grid == stem.grid(SIZE)
    assert tokens.shape == (2, math.prod(grid), DIM)


def check_any_number_of_channels(spec: str) -> None:
    """Images may have any number of channels."""
    for channels in (1, 2, 5):
        tokens, _ = build(spec, channels=channels)(randn(2, channels, *SIZE))
        assert tokens.isfinite().all()


def check_another_size(spec: str) -> None:
    """A stem built for one image size accepts another that fits."""
    stem, size = build(spec), (24, 8)
    tokens, grid = stem(randn(1, 3, *size).expand(2, -1, -1, -1))
    assert grid == build(spec, size).grid(size)
    assert tokens.shape == (2, math.prod(grid), DIM)


def check_row_major_order(spec: str) -> None:
    """A change in the lower right corner of an image changes the last token, but not the first if there are several."""
    stem = scatter(build(spec)).eval()
    image = randn(1, 3, *SIZE)
    changed = image.clone()
    rows, columns = stem.grid(SIZE)
    changed[..., SIZE[0] * (rows - 1) // rows, SIZE[1] * (columns - 1) // columns] += 1.0
    difference = (stem(changed)[0] - stem(image)[0]).abs().amax((0, 2))
    assert difference[-1] > 1e-6
    assert rows * columns == 1 or difference[0] == 0


def check_batch_independence_in_evaluation(spec: str) -> None:
    """In evaluation mode, the tokens of an image are the same alone and in a batch."""
    stem, images = build(spec).eval(), randn(3, 3, *SIZE)
    torch.testing.assert_close(stem(images)[0][1:2], stem(images[1:2])[0], rtol=1e-12, atol=1e-12)


def check_gradients_reach_every_parameter(spec: str) -> None:
    """Every parameter gets a gradient."""
    stem, images = build(spec), randn(3, 3, *SIZE)
    assert unreached(stem, lambda: stem(images)[0]) == []


def check_state_dict_round_trip(spec: str) -> None:
    """The state dictionary contains everything the output depends on, including running statistics."""
    one, other, images = scatter(build(spec)), build(spec), randn(2, 3, *SIZE)
    one(images)  # updates the running statistics of batch norm
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.eval()(images)[0], other.eval()(images)[0])


def check_same_seed_same_stem(spec: str) -> None:
    """Two stems with the same seed are equal."""
    torch.manual_seed(1)
    one = build(spec)
    torch.manual_seed(1)
    assert same_state(one, build(spec))


CHECKS = checks_in(globals())


def test_every_stem_has_an_entry():
    assert_complete(CASES, STEMS, CHECKS)


@pytest.mark.parametrize(("case", "check"), every(CASES, CHECKS))
def test_stem_conforms(case: Case, check: str):
    conform(case, check, CHECKS[check])


@pytest.mark.parametrize("spec", [case.spec for entry in CASES.values() for case in entry])
@settings(max_examples=15)
@given(rows=st.integers(1, 21), columns=st.integers(1, 21))
def test_any_image_size_gives_its_grid_or_is_rejected(spec, rows, columns):
    size, message = (rows, columns), None
    try:
        stem = build(spec, size)
        expected = stem.grid(size)
    except FavoritError as error:
        message = str(error)
    if message is not None:
        assert str(size) in message
    else:
        tokens, grid = stem.eval()(randn(1, 3, *size))
        assert (grid, tokens.shape[1]) == (expected, math.prod(expected))


def test_patch_is_a_linear_map_of_each_patch():
    stem, images = build("patch((2, 4))"), randn(2, 3, *SIZE)
    weight, bias = stem.projection.weight.flatten(1), stem.projection.bias
    for token, (row, column) in enumerate((row, column) for row in range(0, 12, 2) for column in range(0, 20, 4)):
        patch = images[:, :, row : row + 2, column : column + 4].flatten(1)
        torch.testing.assert_close(stem(images)[0][:, token], patch @ weight.mT + bias, rtol=1e-12, atol=1e-12)


def test_crop_drops_the_remainder_at_the_lower_right():
    stem = build("patch(6, crop=True)", (32, 32))
    image = randn(1, 3, 32, 32)
    tokens, grid = stem(image)
    assert (grid, tokens.shape[1]) == ((5, 5), 25)
    cropped = image.clone()
    cropped[..., 30:, :] = cropped[..., :, 30:] = 99.0
    assert torch.equal(stem(cropped)[0], tokens)


@pytest.mark.parametrize(
    ("spec", "size", "grid"),
    [
        ("conv(channels=(4, 4, 4))", (32, 32), (16, 16)),
        ("conv(channels=(4, 4, 4), pool=each)", (32, 32), (4, 4)),
        ("conv(channels=(4, 4), pool=each)", (9, 14), (2, 3)),
        ("conv(channels=(4, 4), tokens=1)", (9, 14), (1, 1)),
        ("resnet(channels=(4, 4))", (32, 32), (8, 8)),
        ("resnet(channels=(4, 4))", (9, 14), (3, 4)),
        ("resnet(channels=(4,), blocks=3)", (9, 14), (5, 7)),
    ],
)
def test_convolutional_stem_has_the_expected_grid(spec, size, grid):
    tokens, found = build(spec, size)(randn(2, 3, *size))
    assert (found, tokens.shape[1]) == (grid, math.prod(grid))


def test_single_token_stem_has_a_layer_of_its_width():
    stem = build("conv(channels=(4,), tokens=1, width=7)", (8, 6))
    assert [tuple(p.shape) for p in stem.projection.parameters()] == [(7, 4 * 4 * 3), (7,), (DIM, 7), (DIM,)]
    stem = build("conv(channels=(4,), tokens=1)", (8, 6))
    assert [tuple(p.shape) for p in stem.projection.parameters()] == [(DIM, 4 * 4 * 3), (DIM,)]


def test_model_with_a_single_token_warns_that_attention_is_trivial():
    small = dict(dim=16, heads=2, depth=1, head="mean", position="none", image_size=8)
    with pytest.warns(
        UserWarning, match=r"conv\(channels=\(4,\), tokens=1\).*single token: attention has nothing to attend to"
    ) as caught:
        model = create_model("vit-64", stem="conv(channels=(4,), tokens=1)", **small)
    assert caught[0].filename == __file__, "the warning points at the caller"
    assert model.features(randn(2, 3, 8, 8, dtype=torch.float32)).shape == (2, 1, 16)


def test_dropout_of_a_stem_acts_in_training_only():
    stem, images = build("conv(channels=(4,), tokens=1, dropout=0.5)"), randn(2, 3, *SIZE)
    torch.manual_seed(0)
    assert not torch.equal(stem(images)[0], stem(images)[0])
    stem.eval()
    assert torch.equal(stem(images)[0], stem(images)[0])


@pytest.mark.parametrize(
    ("spec", "size", "words"),
    [
        ("patch(5)", (32, 32), ["stem", "(5, 5)", "(32, 32)", "divisor", "resize", "crop=True"]),
        ("patch((4, 5))", (32, 32), ["(4, 5)", "(32, 32)"]),
        ("patch(40, crop=True)", (32, 32), ["(40, 40)", "(32, 32)"]),
        ("patch(0)", (32, 32), ["patch", "size=0", "at least 1"]),
        ("patch(True)", (32, 32), ["size=True", "integer"]),
        ("patch(2.5)", (32, 32), ["size=2.5"]),
        ("patch(4, crop=maybe)", (32, 32), ["crop=maybe", "True or False"]),
        ("patch(4, True, 3)", (32, 32), ["at most 2", "patch(size=(4, 4), crop=False)"]),
        ("conv(channels=(4, 4, 4), pool=each)", (7, 32), ["stem", "(7, 32)", "3 times", "pool=last"]),
        ("conv(channels=())", (32, 32), ["channels=()", "at least 1"]),
        ("conv(pool=first)", (32, 32), ["pool=first", "last", "each"]),
        ("conv(act=tanh)", (32, 32), ["act=tanh", "'gelu'", "'silu'"]),
        ("conv(tokens=2)", (32, 32), ["tokens=2"]),
        ("conv(width=64)", (32, 32), ["width=64", "tokens=1"]),
        ("conv(dropout=1)", (32, 32), ["dropout=1", "below 1"]),
        ("resnet(blocks=0)", (32, 32), ["blocks=0", "at least 1"]),
        ("resnt", (32, 32), ["unknown stem 'resnt'", "'resnet'", "patch"]),
    ],
)
def test_invalid_stem_is_named(spec, size, words):
    with pytest.raises(FavoritError) as error:
        build(spec, size).grid(size)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("spec", "size"), [("patch(4)", (2, 2)), ("patch(4)", (12, 21)), ("conv(channels=(4,))", (1, 8))]
)
def test_image_that_does_not_fit_is_rejected_in_forward(spec, size):
    with pytest.raises(FavoritError, match=r"stem: .*\(\d+, \d+\)"):
        build(spec)(randn(1, 3, *size))
