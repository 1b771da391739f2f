"""Small products run on one thread, and the thread limits of other threads do not change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from favorit.attention.cpu import threads
from favorit.attention.cpu.block_features import CPU_KERNELS, CpuKernel
from favorit.attention.cpu.limits import Limits
from favorit.attention.kernels.contract import Kernel
from favorit.attention.linear import Linear
from favorit.selftest.inputs import assert_close, builder, gradients, tensors

pytestmark = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="torch was built without MKL, whose threads are limited"
)


@pytest.fixture(autouse=True, params=[0, 3], ids=["no previous limit", "previous limit"])
def previous_limit(request: pytest.FixtureRequest) -> Iterator[int]:
    """The limit before a test. `torch.set_num_threads` sets such a limit for the calling thread."""
    original = threads.limit_mkl_threads(request.param)
    yield request.param
    threads.limit_mkl_threads(original)


def current_limit() -> int:
    """The limit of this thread. It is read by setting another limit, which is then restored."""
    limit = threads.limit_mkl_threads(0)
    threads.limit_mkl_threads(limit)
    return limit


def fail() -> None:
    raise ValueError("inside")


def test_limit_applies_to_the_calling_thread_and_ends_with_the_call(previous_limit: int) -> None:
    limits_elsewhere: list[int] = []

    def read_limits() -> int:
        other = threading.Thread(target=lambda: limits_elsewhere.append(current_limit()))
        other.start()
        other.join()
        return current_limit()

    assert threads.on_one_thread(read_limits) == 1
    assert limits_elsewhere == [0]
    assert current_limit() == previous_limit
    with pytest.raises(ValueError, match="inside"):
        threads.on_one_thread(fail)
    assert current_limit() == previous_limit


def test_nested_limit_is_restored() -> None:
    def nested() -> int:
        threads.on_one_thread(current_limit)
        return current_limit()

    assert threads.on_one_thread(nested) == 1


def test_mkl_limiter_is_found_if_torch_has_mkl() -> None:
    assert threads.find_mkl_limiter() is not None


@pytest.mark.parametrize("library", [lambda name: object(), Path.read_bytes], ids=["without MKL", "absent"])
def test_no_limiter_is_found_without_mkl(library: Any) -> None:
    assert threads.find_mkl_limiter(lambda name: library(Path(name))) is None


@pytest.mark.parametrize(("m", "tokens", "is_small"), [(16, 128, True), (64, 127, True), (64, 128, False)])
def test_only_calls_below_the_limit_run_on_one_thread(m: int, tokens: int, is_small: bool, previous_limit: int) -> None:
    """2 images with 2 heads of width 16: 4 x 128 tokens with 64 features each have 2^15 elements."""
    limits_inside: list[int] = []

    class Recording(Kernel):
        features = m

        def queries(self, q: torch.Tensor) -> torch.Tensor:
            limits_inside.append(current_limit())
            return torch.relu(q).repeat(1, 1, 1, m // 16) + 1

        def keys(self, k: torch.Tensor) -> tuple[torch.Tensor, None]:
            return self.queries(k), None

    mixer = Linear(Recording())
    q, k, v = tensors(tokens, 16)
    assert ("on one thread" in mixer.explain(q, k, v)) == is_small
    mixer(q, k, v)
    assert limits_inside == [1 if is_small else previous_limit] * 2


@pytest.mark.parametrize("spec", ["relu", "favor(m=24)", "learned(m=5)"])
def test_one_thread_computes_the_same_as_several_threads(spec: str) -> None:
    q, k, v = tensors(65, 16)
    alone = builder(spec)(head_dim=16, tokens=65)(q, k, v)
    together = builder(spec, Limits(one_thread=0))(head_dim=16, tokens=65)(q, k, v)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)
    for mine, twin in zip(gradients(alone, q, k, v), gradients(together, q, k, v), strict=True):
        torch.testing.assert_close(mine, twin, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spec", ["relu", "relu(m=24)", "relu(m=24, bias=True, scale=sqrt)", "relu(scale=none)"])
def test_short_relu_features_equal_those_of_the_kernel_up_to_a_factor(spec: str, dtype: torch.dtype) -> None:
    """Values and gradients, also at x = 0 and for NaN. All features share one factor, which cancels in attention."""
    kernel = builder(spec)(head_dim=4, tokens=9).to(dtype).kernel
    on_cpu: CpuKernel = CPU_KERNELS[type(kernel)]
    x = torch.cat([torch.randn(8, 4, dtype=dtype), torch.zeros(1, 4, dtype=dtype)]).requires_grad_()
    mine, twin = on_cpu.queries(kernel, x), kernel.queries(x)
    factor = on_cpu.floor(kernel) and kernel.scale
    assert_close(mine * factor, twin, 1e-6 if dtype == torch.float32 else 1e-14)
    (mine_grad,), (twin_grad,) = gradients(mine, x), gradients(twin, x)
    assert_close(mine_grad * factor, twin_grad, 1e-5 if dtype == torch.float32 else 1e-13)
    nan = torch.full((1, 4), torch.nan, dtype=dtype)
    assert on_cpu.queries(kernel, nan).isnan().all()


def test_short_relu_features_keep_one_tensor_for_backward() -> None:
    """Autograd saves only the projection; `torch.relu` would also save its result."""
    kernel = builder("relu(m=24)")(head_dim=4, tokens=9).kernel
    saved: list[torch.Size] = []
    x = torch.randn(1, 1, 9, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        CPU_KERNELS[type(kernel)].queries(kernel, x)
    assert saved.count(torch.Size([1, 1, 9, 24])) == 1
