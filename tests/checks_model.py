"""Helpers of the conformance suites of positions, stems, heads and models."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases_model import Case
from favorit import FavoritError

Check = Callable[[str], None]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def scatter(module: nn.Module, scale: float = 0.1, seed: int = 0) -> nn.Module:
    """Adds noise to every parameter, so that no test passes only because a weight is initially zero or one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += scale * noise.to(parameter.dtype)
    return module


def unreached(module: nn.Module, output: Callable[[], Tensor], updates: int = 0) -> list[str]:
    """The parameters without a gradient for a random output direction, after `updates` steps of gradient descent."""
    if not list(module.parameters()):
        return []
    for step in range(updates + 1):
        module.zero_grad()
        out = output()
        (out * randn(*out.shape, seed=step + 1, dtype=out.dtype)).sum().backward()
        if step < updates:
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.1 * parameter.grad
    return [name for name, p in module.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-9]


def same_state(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def assert_equal_gradients(modules: nn.Module, one: Tensor, other: Tensor, inputs: Tensor, **tolerance: float) -> None:
    """Asserts that two outputs have equal values and equal gradients for the inputs and all parameters."""
    torch.testing.assert_close(one, other, **tolerance)
    direction = randn(*one.shape, seed=9, dtype=one.dtype)
    wrt = [inputs, *modules.parameters()]
    first, second = (torch.autograd.grad((out * direction).sum(), wrt, allow_unused=True) for out in (one, other))
    torch.testing.assert_close(first, second, **tolerance)


def checks_in(module: Mapping[str, Any]) -> dict[str, Check]:
    """The functions `check_<name>` of a test module by name."""
    return {
        name.removeprefix("check_"): check
        for name, check in module.items()
        if name.startswith("check_") and inspect.isfunction(check)
    }


def every(cases: Mapping[str, tuple[Case, ...]], checks: Mapping[str, Check]) -> list[Any]:
    """The parameters (case, check) of a conformance suite."""
    return [
        pytest.param(case, name, id=f"{case.spec}-{name}")
        for registered in cases.values()
        for case in registered
        for name in checks
    ]


def conform(case: Case, name: str, check: Check) -> None:
    """Runs a check. An excused check must fail, otherwise the excuse is outdated."""
    excused = pytest.raises((AssertionError, FavoritError)) if name in case.excused else contextlib.nullcontext()
    with excused:
        check(case.spec)


def assert_complete(cases: Mapping[str, Any], registered: Any, checks: Mapping[str, Check] | None = None) -> None:
    """Asserts that cases and registered variants have the same names, and that each excuse has a check and a reason."""
    assert set(cases) == set(registered), "each registered variant needs one entry in tests/cases_model.py"
    for name, entry in cases.items():
        if checks is not None:
            assert any(case.spec.split("(")[0].split("+")[0] == name for case in entry), (
                f"no case of {name} starts with that name"
            )
            for case in entry:
                assert set(case.excused) <= set(checks), f"{case.spec} is excused from a check that does not exist"
                assert all(case.excused.values()), f"{case.spec} is excused without a reason"
