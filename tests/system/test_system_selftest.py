"""`favorit selftest` as a user runs it: every check, on the CPU."""

from __future__ import annotations

import json

from favorit.selftest.checks import MIXER_CHECKS
from training_helpers import finish, start


def test_selftest_passes_on_the_cpu() -> None:
    code, out, errors = finish(start("-m", "favorit", "selftest", "--device", "cpu", "--json"), timeout=1800)
    summary = json.loads(out)
    assert (code, summary["failures"]) == (0, []), errors
    assert set(summary["checks"]) == {*MIXER_CHECKS, "golden losses", "training"}
    assert all(tally["passed"] for tally in summary["checks"].values())
