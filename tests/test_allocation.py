"""A component that does not fit into memory is rejected in one line before anything of its size is allocated."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from favorit import FavoritError, create_model, measure
from favorit.allocation import within_memory
from favorit.attention import Attention, build_mixer

HUGE = 10**10
SHAPE: dict[str, Any] = dict(heads=2, head_dim=16, tokens=50)


def rejected(build: Any) -> str:
    """The message of the error, which must come at once and be one line."""
    start = time.perf_counter()
    with pytest.raises(FavoritError, match=r"a tensor of .* GiB and .* free: choose smaller sizes") as error:
        build()
    assert time.perf_counter() - start < 5
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "spec",
    [
        f"favor(m={HUGE})",
        f"favor(m={10**30})",
        f"favor(m={HUGE}, features=hyperbolic)",
        f"relu(m={HUGE})",
        f"relu(m={HUGE}, learned=True)",
        f"elu(m={HUGE}, rows=orthonormal)",
        f"sincos(m={HUGE})",
        f"learned(hidden={HUGE})",
        f"learned(m={HUGE})",
        f"linformer(k={HUGE})",
        f"linformer(k={HUGE}, share=heads)",
    ],
)
def test_mixer_larger_than_memory_is_rejected(spec: str) -> None:
    assert rejected(lambda: build_mixer(spec, **SHAPE)).startswith(f"{spec}: a tensor of ")


@pytest.mark.parametrize("spec", ["favor", "learned", "mixture"])
def test_mixer_of_huge_heads_is_rejected(spec: str) -> None:
    rejected(lambda: build_mixer(spec, heads=1, head_dim=10**12))


@pytest.mark.parametrize(
    "options",
    [
        dict(dim=10**9, heads=1),
        dict(dim=10**15, heads=1),
        dict(dim=16, heads=1, head_dim=10**12),
        dict(dim=64, heads=4, local="dwconv(999999)"),
        dict(dim=64, heads=4, position="learned", grid=(10**6, 10**6)),
        dict(dim=64, heads=4, position="irpe_gate", grid=(10**12, 10**12)),
        dict(dim=64, heads=4, position=f"string_gate(features={10**12})", grid=(4, 4)),
    ],
)
def test_attention_larger_than_memory_is_rejected(options: dict[str, Any]) -> None:
    rejected(lambda: Attention(**options))


@pytest.mark.parametrize(
    "fields",
    [
        dict(dim=HUGE),
        dict(mlp_dim=HUGE),
        dict(head_dim=HUGE),
        dict(classes=10**12),
        dict(channels=10**12),
        dict(image_size=10**9),
        dict(stem=f"patch({10**8})", image_size=10**8),
        dict(stem=f"conv(channels=(64, {HUGE}))"),
        dict(stem=f"resnet(channels=(64, {HUGE}))"),
        dict(head=f"mlp({HUGE})"),
        dict(layout=f"favor(m={HUGE})"),
    ],
)
def test_model_larger_than_memory_is_rejected(fields: dict[str, Any]) -> None:
    rejected(lambda: create_model("vit-64", **fields))


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.arange(HUGE),
        lambda: torch.arange(0, HUGE, 2),
        lambda: torch.empty(HUGE),
        lambda: torch.empty(size=(HUGE,)),
        lambda: torch.empty([HUGE, 1]),
        lambda: torch.empty(10, HUGE, dtype=torch.int8),
        lambda: torch.eye(10**5 * 2),
        lambda: torch.full((HUGE,), 1.0),
        lambda: torch.linspace(0, 1, HUGE),
        lambda: torch.ones(HUGE),
        lambda: torch.rand(HUGE),
        lambda: torch.randn(HUGE, generator=torch.Generator()),
        lambda: torch.zeros(HUGE, device="cpu"),
    ],
)
def test_every_allocating_function_is_checked(allocate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "free_memory", lambda: 2**33)
    with within_memory("this"):
        assert rejected(allocate).startswith("this: a tensor of ")


def test_sizes_that_fit_and_other_devices_are_not_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with within_memory("this"):
        assert torch.arange(3, 10, 2).tolist() == [3, 5, 7, 9]
        assert torch.empty(HUGE, device="meta").is_meta
        monkeypatch.setattr(measure, "free_memory", lambda: 2**26)
        assert torch.empty(2**24).numel() == 2**24
        with pytest.raises(FavoritError, match=r"a tensor of 16777217 values needs 0\.1 GiB and 0\.1 are free"):
            torch.empty(2**24 + 1)
    with torch.device("meta"), within_memory("this"):
        assert torch.empty(HUGE).is_meta


def test_unknown_free_memory_rejects_only_what_cannot_be_addressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "free_memory", lambda: None)
    rejected(lambda: build_mixer(f"favor(m={10**18})", **SHAPE))
