"""Every row of the route tables is used by an example call, gives its reason, and computes the formula."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from favorit.attention import Mixer, route
from favorit.attention.cpu.limits import Limits
from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest.inputs import assert_close, builder, gradients, tensors

TOKENS, WIDTH = 70, 8
SPLIT = Limits(one_thread=0)
BLOCKED = Limits(one_thread=0, few_feature_elements=0, bf16_products=True)
EXPLICIT = Limits(fewest_weights=0, bf16_products=True)
EMULATED = Limits(fewest_weights=0, bf16_products=False)


@dataclass(frozen=True)
class Example:
    """A call that uses one row of a table."""

    reason: str
    spec: str = "softmax"
    limits: Limits = field(default=Limits())
    dtype: torch.dtype = torch.float32
    tokens: int = TOKENS
    queries: int = TOKENS
    shares_tokens: bool = False  # k is v
    is_causal: bool = False
    context: type[AbstractContextManager] = nullcontext

    def mixer(self) -> Mixer:
        return builder(self.spec, self.limits)(head_dim=WIDTH, tokens=self.tokens, causal=self.is_causal)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = tensors(self.queries, WIDTH, n_keys=self.tokens, dtype=self.dtype)
        return q, k, k if self.shares_tokens else v


FORWARD = [
    Example("all features at once, on one thread", "relu(m=8)"),
    Example("all features at once: too few", "favor(m=8)", SPLIT),
    Example("prefix sums", "favor(m=8)", BLOCKED, is_causal=True),
    Example("blocks in bf16", "relu(m=8)", BLOCKED, torch.bfloat16),
    Example("blocks of heads and tokens", "favor(m=8)", BLOCKED),
    Example("torch's fused kernel: inference", context=torch.no_grad),
    Example("explicit weights: fewer queries", queries=2, shares_tokens=True),
    Example(
        "explicit weights in fp32: fewer queries", "softmax", EMULATED, torch.float16, queries=2, shares_tokens=True
    ),
    Example("explicit weights in bf16", "softmax", EXPLICIT, torch.bfloat16),
    Example("explicit weights in fp32: training a short", "softmax", EXPLICIT),
    Example("torch's fused kernel in fp32", "softmax", EMULATED, torch.bfloat16, tokens=300),
    Example("torch's fused kernel: no faster implementation applies", "softmax", EXPLICIT, tokens=300),
]
# The beginnings of the reasons of the first rows.
ELSEWHERE = ("zeros", "explicit weights: inside a transform", "direct form", "torch's fused kernel: not an eager")
# For half precision: twice half a unit in the last place of elements up to 2.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def rows_used(table: Sequence[route.Route], reasons: Sequence[str]) -> set[int]:
    return {next(number for number, row in enumerate(table) if row.reason.startswith(reason)) for reason in reasons}


def test_examples_use_every_row_of_the_forward_tables() -> None:
    """Except the first rows, for empty inputs, transforms, compilers and other devices, which other tests cover."""
    reasons = {"relu": [], "favor": [], "softmax": []}
    for example in FORWARD:
        reasons[example.spec.partition("(")[0]].append(example.reason)
    for table, used in ((route.LINEAR, reasons["relu"] + reasons["favor"]), (route.SOFTMAX, reasons["softmax"])):
        others = {number for number, row in enumerate(table) if row.reason.startswith(ELSEWHERE)}
        assert rows_used(table, used) == set(range(len(table))) - others


@pytest.mark.parametrize("example", FORWARD, ids=lambda example: example.reason)
def test_row_computes_the_formula(example: Example) -> None:
    """Outputs and gradients equal those of `direct` in fp64; `explain` gives the reason of the row."""
    mixer, inputs = example.mixer(), example.inputs()
    with example.context():
        assert mixer.explain(*inputs).startswith(example.reason)
        out = mixer(*inputs)
    assert out.dtype == example.dtype
    wide = {id(x): x.detach().double().requires_grad_() for x in inputs}
    wide_inputs = [wide[id(x)] for x in inputs]
    twin_mixer = example.mixer()
    for buffer in twin_mixer.buffers():  # bf16 products use rounded rows
        buffer.copy_(buffer.to(example.dtype))
    exact = twin_mixer.double().direct(*wide_inputs)  # type: ignore[operator]
    tolerance = TOLERANCES[example.dtype]
    assert_close(out.double(), exact, 4 * tolerance)
    if out.requires_grad:
        for mine, twin in zip(gradients(out, *inputs), gradients(exact, *wide_inputs), strict=True):
            assert ((mine.double() - twin).norm() / twin.norm()).item() < 10 * tolerance


READ = [
    Example("weights first", "relu(m=8)", BLOCKED, queries=2),
    Example("keys and values projected", "relu(m=8)", queries=2),
    Example("projections folded", queries=2),
    Example("keys and values projected", queries=TOKENS),
]


@pytest.mark.parametrize("example", READ, ids=lambda example: f"{example.spec} {example.reason}")
def test_row_of_read_computes_forward(example: Example) -> None:
    source = torch.Generator().manual_seed(4)
    x, weight, bias = (
        torch.randn(shape, generator=source).requires_grad_()
        for shape in ((2, TOKENS, 10), (2, 2, WIDTH, 10), (2, 2, WIDTH))
    )
    mixer, q, tokens = example.mixer(), example.inputs()[0], UnprojectedTokens(x, weight, bias)
    assert mixer.explain_read(q, tokens).startswith(example.reason)
    mine = mixer.read(q, tokens)
    k, v = torch.einsum("bnc,khdc->kbhnd", x, weight) + bias[:, None, :, None]
    twin = mixer.direct(q, k, v)  # type: ignore[operator]
    assert_close(mine, twin, 2e-5)
    for gradient, other in zip(gradients(mine, q, x, weight), gradients(twin, q, x, weight), strict=True):
        assert_close(gradient, other, 2e-4)


def test_examples_use_every_row_of_the_read_tables() -> None:
    for table, spec in ((route.READ_LINEAR, "relu(m=8)"), (route.READ_SOFTMAX, "softmax")):
        reasons = [example.reason for example in READ if example.spec == spec]
        assert rows_used(table, reasons) == set(range(len(table)))


def test_read_that_calls_forward_also_explains_forward() -> None:
    x, weight = torch.randn(2, TOKENS, 10, requires_grad=True), torch.randn(2, 2, WIDTH, 10)
    for example in READ:
        mixer, q, tokens = example.mixer(), example.inputs()[0], UnprojectedTokens(x, weight, None)
        reason, _, forward = mixer.explain_read(q, tokens).partition("; ")
        assert reason.startswith(example.reason)
        if example.reason == "keys and values projected":
            assert forward == mixer.explain(q, *tokens.keys_and_values())
        else:
            assert bool(forward) == (example.spec == "softmax")


@pytest.mark.parametrize("spec", ["relu(m=8)", "favor(m=8)", "favor(m=8, causal=True)", "softmax"])
def test_transforms_of_torch_func_use_the_direct_form(spec: str) -> None:
    mixer = builder(spec, BLOCKED)(head_dim=WIDTH, tokens=TOKENS)
    q, k, v = (x.detach() for x in tensors(TOKENS, WIDTH))
    reasons = []

    def loss(q: Tensor) -> Tensor:
        reasons.append(mixer.explain(q, k, v))
        return mixer(q, k, v).square().sum()

    found = torch.func.grad(loss)(q)
    expected = "explicit weights: inside a transform" if spec == "softmax" else "direct form: not an eager call"
    assert all(reason.startswith(expected) for reason in reasons)
    leaf = q.clone().requires_grad_()
    (eager,) = torch.autograd.grad(mixer(leaf, k, v).square().sum(), leaf)
    assert_close(found, eager, 1e-4)


def test_last_row_of_each_table_always_applies() -> None:
    for table in (route.LINEAR, route.SOFTMAX, route.READ_LINEAR, route.READ_SOFTMAX):
        assert table[-1].applies is route.always


def test_reasons_of_a_table_differ() -> None:
    for table in (route.LINEAR, route.SOFTMAX, route.READ_LINEAR, route.READ_SOFTMAX):
        reasons = [row.reason for row in table]
        assert len(set(reasons)) == len(reasons)


def test_run_and_explain_use_the_same_row() -> None:
    taken: list[Any] = []
    table = (
        route.Route(lambda call: call.q.shape[-2] < 5, "short", lambda call: taken.append("short") or call.q),
        route.Route(route.always, "long", lambda call: taken.append("long") or call.q),
    )
    for tokens in (4, 5):
        call = route.LinearCall(None, builder("relu")(head_dim=4, tokens=4).kernel, *tensors(tokens, 4), None)
        route.run(table, call)
        assert route.explain(table, call) == taken[-1]
    assert taken == ["short", "long"]
