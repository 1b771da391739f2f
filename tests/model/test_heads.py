"""Conformance of every registered head: tokens to logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cases_model import HEADS as CASES
from cases_model import Case
from checks_model import assert_complete, checks_in, conform, every, randn, scatter, unreached
from favorit import FavoritError
from favorit.model import HEADS
from favorit.model.head import Head

DIM, CLASSES, PATCHES = 6, 4, 5


def build(spec: str, dropout: float = 0.0) -> Head:
    return scatter(HEADS.build(spec, dim=DIM, classes=CLASSES, tokens=PATCHES, dropout=dropout).double())


def tokens(head: Head, patches: int = PATCHES, batch: int = 3) -> torch.Tensor:
    return randn(batch, head.prefix + patches, DIM)


def check_logits_for_each_image(spec: str) -> None:
    """One row of logits for each image."""
    head = build(spec)
    assert head(tokens(head)).shape == (3, CLASSES)


def check_order_of_patches_does_not_matter(spec: str) -> None:
    """Permuting the patches does not change the logits."""
    head = build(spec)
    x = tokens(head)
    order = torch.cat([torch.arange(head.prefix), head.prefix + torch.tensor([3, 0, 4, 1, 2])])
    torch.testing.assert_close(head(x[:, order]), head(x), rtol=1e-12, atol=1e-12)


def check_any_number_of_tokens(spec: str) -> None:
    """The number of tokens may differ from the one that the head was built for."""
    head = build(spec)
    assert head(tokens(head, PATCHES + 2)).shape == (3, CLASSES)


def check_reads_every_token(spec: str) -> None:
    """Every token gets a gradient."""
    head = build(spec)
    x = tokens(head).requires_grad_()
    head(x).square().sum().backward()
    assert x.grad.abs().amax((0, 2)).min() > 1e-6


def check_leading_tokens_suffice(spec: str) -> None:
    """The first `reads` tokens alone give the same logits."""
    head = build(spec)
    x = tokens(head)
    assert torch.equal(head(x[:, : head.reads]), head(x))


def check_batch_independence(spec: str) -> None:
    """The logits of an image are the same alone and in a batch."""
    head = build(spec)
    x = tokens(head)
    torch.testing.assert_close(head(x)[1:2], head(x[1:2]), rtol=1e-12, atol=1e-12)


def check_gradients_reach_every_parameter(spec: str) -> None:
    """Every parameter gets a gradient."""
    head = build(spec)
    x = tokens(head)
    assert unreached(head, lambda: head(x)) == []


def check_state_dict_round_trip(spec: str) -> None:
    """The state dictionary contains everything the output depends on."""
    one, other = build(spec), HEADS.build(spec, dim=DIM, classes=CLASSES, tokens=PATCHES, dropout=0.0).double()
    x = tokens(one)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


CHECKS = checks_in(globals())


def test_every_head_has_an_entry():
    assert_complete(CASES, HEADS, CHECKS)


@pytest.mark.parametrize(("case", "check"), every(CASES, CHECKS))
def test_head_conforms(case: Case, check: str):
    conform(case, check, CHECKS[check])


def norm(head: Head, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (DIM,), head.norm.weight, head.norm.bias)


@pytest.mark.parametrize(
    ("spec", "pooled"),
    [
        ("cls", lambda head, x: norm(head, x[:, 0])),
        ("mean", lambda head, x: norm(head, x.sum(1) / x.shape[1])),
        (
            "seqpool",
            lambda head, x: torch.einsum(
                "bn,bnc->bc", (norm(head, x) @ head.score.weight[0]).softmax(1), norm(head, x)
            ),
        ),
    ],
)
def test_head_equals_its_formula(spec, pooled):
    head = build(spec)
    x = tokens(head)
    torch.testing.assert_close(head(x), pooled(head, x) @ head.out.weight.mT + head.out.bias, rtol=1e-12, atol=1e-12)


def test_cls_reads_only_the_first_token():
    head = build("cls")
    x = tokens(head)
    assert head.prefix == 1
    changed = x.clone()
    changed[:, 1:] = 99.0
    assert torch.equal(head(changed), head(x))
    changed[:, 0] += randn(DIM)
    assert not torch.allclose(head(changed), head(x))


def test_mlp_has_a_dense_layer_for_each_width():
    shapes = [tuple(p.shape) for name, p in build("mlp(12, 9)").layers.named_parameters() if "weight" in name]
    assert shapes == [(DIM,), (12, PATCHES * DIM), (9, 12), (CLASSES, 9)]


def test_mlp_dropout_acts_in_training_only():
    head = build("mlp(12)", dropout=0.5)
    x = tokens(head)
    torch.manual_seed(0)
    assert not torch.equal(head(x), head(x))
    head.eval()
    assert torch.equal(head(x), head(x))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("clss", ["unknown head 'clss'", "'cls'", "seqpool"]),
        ("mlp(0)", ["mlp", "widths=(0,)", "at least 1"]),
        ("mlp(2.5)", ["widths=(2.5,)", "integer"]),
        ("mlp(3, widths=(4,))", ["widths is given twice"]),
        ("mean(3)", ["mean takes at most 0 values"]),
        ("mean(width=3)", ["unknown parameter of mean 'width'"]),
    ],
)
def test_invalid_head_is_named(spec, words):
    with pytest.raises(FavoritError) as error:
        build(spec)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_mlp_with_a_wrong_number_of_tokens_is_rejected():
    with pytest.raises(FavoritError, match=r"got 6 tokens and was built for 5.*image_size"):
        build("mlp(7)")(randn(1, 6, DIM))
