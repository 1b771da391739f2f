"""The conformance of every registered mixer, and that every excuse is needed."""

from __future__ import annotations

import pytest
import torch

import cases
from checks import MIXER_CHECKS, builder
from favorit.attention import KERNELS, MIXERS, Linear, explicit, streamed

SPECS = [(name, spec) for name, case in cases.MIXERS.items() for spec in case.specs]


def test_every_registered_mixer_has_an_entry() -> None:
    assert set(cases.MIXERS) == set(MIXERS)
    assert set(KERNELS) <= set(MIXERS)


def test_every_entry_tries_its_own_name_and_excuses_known_invariants() -> None:
    for name, case in cases.MIXERS.items():
        assert case.specs, name
        assert all(spec.partition("(")[0] == name for spec in case.specs)
        assert set(case.excused) <= set(MIXER_CHECKS), name


@pytest.mark.parametrize("spec", [spec for name, spec in SPECS if name in KERNELS])
def test_a_kernel_says_how_many_features_it_has(spec: str) -> None:
    mixer = builder(spec)(head_dim=16, tokens=5)
    assert isinstance(mixer, Linear)
    x = torch.randn(2, 2, 5, 16)
    assert mixer.kernel.queries(x).shape[-1] == mixer.kernel.keys(x)[0].shape[-1] == mixer.kernel.features


@pytest.mark.parametrize(
    ("spec", "check"), [(spec, check) for name, spec in SPECS for check in MIXER_CHECKS if check not in cases.MIXERS[name].excused]
)
def test_conformance(spec: str, check: str) -> None:
    MIXER_CHECKS[check](builder(spec))


@pytest.mark.parametrize(
    ("spec", "check"),
    [
        (spec, check)
        for name, spec in SPECS
        if name in KERNELS or name == "softmax"
        for check in MIXER_CHECKS
        if check not in cases.MIXERS[name].excused
    ],
)
def test_conformance_in_blocks(spec: str, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that large inputs take, also in blocks of a few tokens on several threads."""
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", 64 * 24)
    monkeypatch.setattr(explicit, "FEWEST_KEPT", 1)
    MIXER_CHECKS[check](builder(spec))


@pytest.mark.parametrize(("name", "check"), [(name, check) for name, case in cases.MIXERS.items() for check in case.excused])
def test_an_excuse_is_needed(name: str, check: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        MIXER_CHECKS[check](builder(cases.MIXERS[name].specs[0]))
