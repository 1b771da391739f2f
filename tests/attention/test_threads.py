"""Few numbers are kept on one thread, and nobody else's threads are touched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from checks import assert_close, builder, gradients, tensors
from favorit.attention import threads
from favorit.attention.kernels.pointwise import HOMOGENEOUS

pytestmark = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="torch comes without MKL here: nothing is limited"
)


@pytest.fixture(autouse=True, params=[0, 3], ids=["no limit before", "a limit before"])
def before(request: pytest.FixtureRequest) -> Iterator[int]:
    """The limit that is there before, as `torch.set_num_threads` leaves one in the thread that calls it."""
    found = threads._limit(request.param)
    yield request.param
    threads._limit(found)


def limit() -> int:
    """The one in force for this thread, which stays."""
    found = threads._limit(0)
    threads._limit(found)
    return found


def fail() -> None:
    raise ValueError("inside")


def test_the_limit_holds_inside_for_this_thread_only_and_ends_with_the_call(before: int) -> None:
    elsewhere: list[int] = []

    def look() -> int:
        other = threading.Thread(target=lambda: elsewhere.append(limit()))
        other.start()
        other.join()
        return limit()

    assert threads.alone(look) == 1
    assert elsewhere == [0]
    assert limit() == before
    with pytest.raises(ValueError, match="inside"):
        threads.alone(fail)
    assert limit() == before


def test_a_limit_that_was_there_before_comes_back() -> None:
    def twice() -> int:
        threads.alone(limit)
        return limit()

    assert threads.alone(twice) == 1


def test_where_torch_has_mkl_its_limit_is_found() -> None:
    """Else nothing below would be tested here."""
    assert threads._limit is not None


@pytest.mark.parametrize("library", [lambda name: object(), Path.read_bytes], ids=["without MKL", "absent"])
def test_without_such_a_limit_nothing_is_kept_on_one_thread(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.ctypes, "CDLL", lambda name: library(Path(name)))
    monkeypatch.setattr(threads, "_limit", threads._limiter())
    assert threads._limit is None
    mixer = builder("relu")(head_dim=16, tokens=5)
    q, k, v = tensors(5, 16)
    assert "one thread" not in mixer.explain(q, k, v)
    assert_close(mixer(q, k, v), mixer.weights(q, k) @ v, 1e-5)


@pytest.mark.parametrize(
    ("spec", "tokens", "tiny"), [("relu", 128, True), ("relu(m=64)", 127, True), ("relu(m=64)", 128, False)]
)
def test_only_what_torch_does_not_divide_is_tiny(
    spec: str, tokens: int, tiny: bool, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 images of 2 heads of 16: 4 x 128 tokens with 64 features each are 2^15 numbers."""
    mixer = builder(spec)(head_dim=16, tokens=tokens)
    q, k, v = tensors(tokens, 16)
    assert ("on one thread" in mixer.explain(q, k, v)) == tiny
    found: list[int] = []
    queries = mixer.kernel.queries
    monkeypatch.setattr(mixer.kernel, "queries", lambda x: found.append(limit()) or queries(x))
    mixer(q, k, v)
    assert found == [1 if tiny else before] * 2, "queries, and keys that are as queries"


@pytest.mark.parametrize("spec", ["relu", "favor(m=24)", "learned(m=5)"])
def test_one_thread_finds_what_several_find(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = builder(spec)(head_dim=16, tokens=65)
    q, k, v = tensors(65, 16)
    alone = mixer(q, k, v)
    monkeypatch.setattr(threads, "GRAIN", 0)
    together = mixer(q, k, v)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)
    for mine, twin in zip(gradients(alone, q, k, v), gradients(together, q, k, v), strict=True):
        torch.testing.assert_close(mine, twin, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_a_function_raised_in_place_is_the_function_and_eps(name: str, ready: bool, dtype: torch.dtype) -> None:
    """In value and slope, at its kink and at no number too; nothing is kept for the way back but x."""
    f = builder(name)(head_dim=4, tokens=2).kernel.f
    x = torch.tensor([-2.0, -0.0, 0.0, 1e-30, 3.0, float("nan")], dtype=dtype, requires_grad=True)
    eps = 0.1  # which fp32 rounds
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        raised = HOMOGENEOUS[name].raised(x, torch.tensor(eps, dtype=dtype) if ready else eps)
    plain = f(x) + eps
    assert raised.dtype == dtype
    torch.testing.assert_close(raised, plain, rtol=0, atol=0, equal_nan=True)
    assert [t.data_ptr() for t in kept] == [x.data_ptr()]
    torch.testing.assert_close(
        torch.autograd.grad(raised.sum(), x), torch.autograd.grad(plain.sum(), x), rtol=0, atol=0
    )
