"""Checks that need many draws, and the dtypes of products: for the tests of this library only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from favorit.selftest.inputs import HEADS, Build


class Products(TorchDispatchMode):
    """The types that each product, or torch's kernel, sees, forward and back."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[set[torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in ("bmm", "aten.mm", "scaled_dot_product")):
            self.types.append({x.dtype for x in args if isinstance(x, Tensor)})
        return func(*args, **(kwargs or {}))


def estimates(build: Build, z: Tensor, apart: Tensor, draws: int) -> Tensor:
    """(draws, cases): raw estimates of exp(q~ . k~) over exp(q~ . k~), for q~ = z/2 + apart, k~ = z/2 - apart.

    Attention weights are known up to a factor for each query; the key -q, whose estimate is exactly exp(-|q~|^2), fixes
    it.
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
    """The mean of many draws is within 1 % of exp(q . k / sqrt(D)) in every direction at |z| <= 1, for head widths 4,
    8, 16.
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
