"""Conformance of every registered mixer. An excused check must fail, so that outdated excuses are noticed."""

from __future__ import annotations

import pytest
import torch

from favorit.attention import KERNELS, MIXERS, Linear
from favorit.selftest import cases
from favorit.selftest.checks import MIXER_CHECKS, REQUIRED_CHECKS
from favorit.selftest.inputs import builder, case_builder

CASES = [(name, case) for table in (cases.MIXERS, cases.RAW) for name, case in table.items()]
SPECS = [(name, spec) for name, case in CASES for spec in case.specs]


def test_every_registered_mixer_has_an_entry() -> None:
    assert set(cases.MIXERS) == set(MIXERS)
    assert set(KERNELS) <= set(MIXERS)


def test_entry_has_specs_of_its_name_and_excuses_only_known_checks() -> None:
    for name, case in CASES:
        assert case.specs, name
        assert all(spec.partition("(")[0] == name for spec in case.specs)
        assert set(case.excused) <= set(MIXER_CHECKS), name


@pytest.mark.parametrize("spec", [spec for name, spec in SPECS if name in KERNELS])
def test_kernel_returns_its_declared_number_of_features(spec: str) -> None:
    mixer = builder(spec)(head_dim=16, tokens=5)
    assert isinstance(mixer, Linear)
    x = torch.randn(2, 2, 5, 16)
    assert mixer.kernel.queries(x).shape[-1] == mixer.kernel.keys(x)[0].shape[-1] == mixer.kernel.features


@pytest.mark.parametrize(
    ("case", "spec", "check"),
    [pytest.param(case, spec, check, id=f"{spec}-{check}") for _, case, spec, check in REQUIRED_CHECKS],
)
def test_mixer_conforms(case: cases.Case, spec: str, check: str) -> None:
    MIXER_CHECKS[check](case_builder(case, spec))


@pytest.mark.parametrize(("spec", "check"), [(case.specs[0], check) for _, case in CASES for check in case.excused])
def test_excused_check_fails(spec: str, check: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        MIXER_CHECKS[check](builder(spec))
