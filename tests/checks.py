"""Checks that only the tests use: formulas of kernels, statistics of random features, dtypes of matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from favorit.attention import Kernel, Linear
from favorit.attention.mixer import UnprojectedTokens
from favorit.selftest.formulas import Formula
from favorit.selftest.inputs import HEADS, Build, assert_close, gradients, tensors


class Products(TorchDispatchMode):
    """Records the dtypes of the arguments of each matrix product and of torch's attention kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[set[torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in ("bmm", "aten.mm", "scaled_dot_product")):
            self.types.append({x.dtype for x in args if isinstance(x, Tensor)})
        return func(*args, **(kwargs or {}))


def follows_formula(
    build: Build, formula: Formula, causal: bool = False, wrong: Callable[[Kernel], None] | None = None
) -> None:
    """Attention with a kernel equals its formula: weights, outputs, gradients, and `read` for few queries.

    Noise is added to the parameters, because different formulas may be equal at the initial values. `wrong` changes
    the kernel, but not the formula.
    """
    dim = 6
    mixer = build(head_dim=dim, tokens=65, causal=causal).double()
    assert isinstance(mixer, Linear)
    source = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for p in mixer.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=source, dtype=torch.float64))
    state = {
        **dict(mixer.kernel.named_parameters()),
        **{name: buffer.clone() for name, buffer in mixer.kernel.named_buffers()},
    }
    if wrong is not None:
        wrong(mixer.kernel)

    def expected_weights(q: Tensor, k: Tensor) -> Tensor:
        products = formula(state, q) @ formula(state, k).mT
        products = products.tril() if causal else products
        return products / products.sum(-1, keepdim=True)

    q, k, v = tensors(65, dim, dtype=torch.float64)
    expected = expected_weights(q, k)
    assert_close(mixer.weights(q, k), expected, 1e-9)
    pairs = [(mixer(q, k, v), expected @ v)]
    if not causal:
        identity = torch.eye(dim, dtype=torch.float64).expand(2, HEADS, dim, dim)
        first = expected_weights(q[:, :, :2], k[:, :1].expand_as(k))
        pairs.append((mixer.read(q[:, :, :2], UnprojectedTokens(k[:, 0], identity, None)), first @ k[:, :1]))
    wanted = (q, k, v, *mixer.parameters())
    for out, twin in pairs:
        assert_close(out, twin, 1e-9)
        for mine, other in zip(gradients(out, *wanted), gradients(twin, *wanted), strict=True):
            assert_close(mine, other, 1e-8)


def estimates(build: Build, z: Tensor, apart: Tensor, draws: int) -> Tensor:
    """(draws, cases): estimates of exp(q~ . k~) divided by exp(q~ . k~), for q~ = z/2 + apart, k~ = z/2 - apart.

    Attention weights give the estimates up to a factor for each query. The factor follows from a second key, -q, whose
    estimate is exactly exp(-|q~|^2).
    """
    d = z.shape[-1]
    q, k = (z / 2 + apart) * d**0.25, (z / 2 - apart) * d**0.25
    q_tilde, k_tilde = z / 2 + apart, z / 2 - apart
    queries = q[:, None, None, :].expand(-1, HEADS, -1, -1)
    keys = torch.stack([k, -q], 1)[:, None].expand(-1, HEADS, -1, -1)
    found = []
    for draw in range(draws):
        w = build(head_dim=d, tokens=2, seed=draw).double().weights(queries, keys)[:, 0, 0]
        found.append(w[:, 0] / w[:, 1] * torch.exp(-q_tilde.square().sum(-1) - (q_tilde * k_tilde).sum(-1)))
    return torch.stack(found)


def directions(d: int) -> Tensor:
    """Unit vectors: all ones, an axis, all ones with one sign changed, and two random ones."""
    ones = torch.ones(d, dtype=torch.float64)
    flipped = ones.clone()
    flipped[0] = -1
    random = torch.randn(2, d, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    return torch.nn.functional.normalize(
        torch.stack([ones, torch.eye(d, dtype=torch.float64)[0], flipped, *random]), dim=-1
    )


def unbiased(build: Build) -> None:
    """The mean of many draws is within 1 % of exp(q . k / sqrt(D)) for all tested directions of z with |z| <= 1 and
    head widths 4, 8 and 16.
    """
    for d in (4, 8, 16):
        for length in (0.5, 1.0):
            z = length * directions(d)
            ratio = estimates(build, z, 0.2 * directions(d).roll(1, 0), draws=400).mean(0)
            worst = (ratio - 1).abs().max().item()
            assert worst < 0.01, (
                f"estimate/true is off by {worst:.3f} at head width {d}, |z| {length}: {ratio.tolist()}"
            )


def squared_errors(build: Build, d: int, length: float, draws: int) -> Tensor:
    """(draws,): the squared relative error of each draw, averaged over 64 directions of z."""
    source = torch.Generator().manual_seed(8)
    z = length * torch.nn.functional.normalize(torch.randn(64, d, generator=source, dtype=torch.float64), dim=-1)
    return (estimates(build, z, torch.zeros_like(z), draws) - 1).square().mean(1)
