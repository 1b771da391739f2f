"""Conformance with the implementations for large inputs. A separate file, because a file is tested by one worker."""

from __future__ import annotations

import pytest

from favorit.attention import KERNELS
from favorit.attention.cpu.limits import Limits
from favorit.selftest import cases
from favorit.selftest.checks import MIXER_CHECKS, REQUIRED_CHECKS
from favorit.selftest.inputs import case_builder

# These limits force the blocked implementations for all inputs, with blocks of a few tokens.
BLOCKS = Limits(one_thread=0, few_feature_elements=0, block_elements=64 * 24, fewest_weights=1)


@pytest.mark.parametrize(
    ("case", "spec", "check"),
    [
        pytest.param(case, spec, check, id=f"{spec}-{check}")
        for name, case, spec, check in REQUIRED_CHECKS
        if name in KERNELS or name == "softmax"
    ],
)
def test_mixer_conforms_in_blocks(case: cases.Case, spec: str, check: str) -> None:
    MIXER_CHECKS[check](case_builder(case, spec, BLOCKS))
