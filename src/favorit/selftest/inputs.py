"""Mixers and tensors for the checks, and functions that compare tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from favorit.attention import Kernel, Linear, Mixer, build_mixer
from favorit.attention.cpu.limits import Limits
from favorit.selftest.cases import Case
from favorit.spec import Spec, parse

# build(causal=False, seed=0, **shape) builds a mixer for the given head_dim and tokens. Equal seeds give equal mixers.
Build = Callable[..., Mixer]

HEADS = 2
BATCH = 2


def builder(text: str, limits: Limits | None = None) -> Build:
    """A builder for a spec. Learned parameters and random features depend only on the seed.

    `limits` forces a CPU implementation that would not be used for inputs of this size.
    """
    spec = parse(text)

    def build(*, causal: bool = False, seed: int = 0, heads: int = HEADS, **shape: Any) -> Mixer:
        torch.manual_seed(seed)
        kwargs = {**spec.kwargs, "causal": True} if causal else spec.kwargs
        mixer = build_mixer(Spec(spec.name, spec.args, kwargs), heads=heads, seed=seed, **shape)
        if limits is not None:
            mixer.limits = limits
        return mixer

    return build


def case_builder(case: Case, spec: str, limits: Limits | None = None) -> Build:
    """A builder for one spec of a case."""
    build = builder(spec, limits)
    return near(build) if case.near else build


def has_causal(build: Build) -> bool:
    """True if the mixer has a causal form."""
    try:
        return build(head_dim=4, tokens=4, causal=True).causal
    except ValueError:
        return False


def near(build: Build) -> Build:
    """A builder whose mixers replace each token x by c + 0.3 tanh(x), c = (1, -1, 1, ...).

    phi(q) . phi(k) is then close to |phi(c)|^2 > 0, so weights are well defined even if features may be negative.
    """

    def built(**shape: Any) -> Mixer:
        mixer = build(**shape)
        assert isinstance(mixer, Linear)
        mixer.kernel = _Near(mixer.kernel)
        return mixer

    return built


class _Near(Kernel):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self.features = kernel.features

    def queries(self, q: Tensor) -> Tensor:
        return self.kernel.queries(self._near(q))

    def keys(self, k: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.kernel.keys(self._near(k))

    def _near(self, x: Tensor) -> Tensor:
        center = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        center[1::2] = -1
        return center + 0.3 * x.tanh()


def tensors(
    n: int,
    d: int,
    *,
    n_keys: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
    device: str = "cpu",
) -> tuple[Tensor, Tensor, Tensor]:
    """Standard normal q, k, v that require gradients. Their values are the same on all devices."""
    source = torch.Generator().manual_seed(seed)
    lengths = (n, n_keys or n, n_keys or n)
    normal = (torch.randn(BATCH, HEADS, length, d, generator=source, dtype=torch.float64) for length in lengths)
    q, k, v = (x.to(dtype).to(device).requires_grad_() for x in normal)
    return q, k, v


class TooFarError(AssertionError):
    """Two tensors differ by more than the tolerance. `excess` is the difference divided by the tolerance."""

    def __init__(self, difference: float, tolerance: float, scale: str = "of the largest entry") -> None:
        super().__init__(f"differs by {difference:.2e} {scale}, allowed {tolerance:.0e}")
        self.excess = difference / tolerance


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Asserts equality up to a tolerance, relative to max(1, largest |expected|)."""
    scale = max(1.0, expected.abs().max().item())
    difference = (actual - expected).abs().max().item() / scale
    if not difference <= tolerance:  # NaN fails too
        raise TooFarError(difference, tolerance)


def gradients(out: Tensor, *wanted: Tensor) -> list[Tensor]:
    """The gradients of a fixed random projection of the output. Zeros for inputs that do not affect it."""
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = torch.autograd.grad((out * probe.to(out.dtype).to(out.device)).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
