"""The suite rejects what is known to be wrong."""

from __future__ import annotations

import pytest

from checks import unbiased
from favorit.selftest.checks import MIXER_CHECKS
from mutants import MUTANTS

CHECKS = {**MIXER_CHECKS, "unbiased": unbiased}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_rejected(name: str) -> None:
    build, check = MUTANTS[name]
    with pytest.raises(AssertionError):
        CHECKS[check](build)
