"""The conformance suite rejects implementations that are known to be wrong."""

from __future__ import annotations

import pytest

from checks import follows_formula, unbiased
from favorit.selftest import formulas
from favorit.selftest.checks import MIXER_CHECKS
from mutants import MUTANTS

CHECKS = {
    **MIXER_CHECKS,
    "unbiased": unbiased,
    "favor_follows_formula": lambda build: follows_formula(build, formulas.favor),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_rejected(name: str) -> None:
    build, check = MUTANTS[name]
    with pytest.raises(AssertionError):
        CHECKS[check](build)
