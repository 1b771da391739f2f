"""`favorit selftest`: the summary, and the exit code of a failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from favorit.selftest import run
from favorit.selftest.checks import REQUIRED_CHECKS
from mutants import MUTANTS

Command = Callable[..., tuple[int, str, str]]

SUBSET = [
    promise for promise in REQUIRED_CHECKS if promise.spec in ("relu", "softmax") and "sum_to_one" in promise.check
]


@pytest.fixture
def subset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits the promises to the `sum_to_one` checks of relu and softmax."""
    monkeypatch.setattr(run, "REQUIRED_CHECKS", SUBSET)


@pytest.fixture
def wrong_mixers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces every mixer by one whose weights lack the normalizer."""
    monkeypatch.setattr(run, "case_builder", lambda case, spec: MUTANTS["weights without a normalizer"][0])


@pytest.mark.usefixtures("subset")
def test_passing_selftest_prints_versions_checks_and_times(command: Command) -> None:
    status, out, err = command("selftest", "--only", "o")
    assert (status, err) == (0, "")
    heading, titles, sums, golden, verdict = out.splitlines()
    assert heading.startswith("favorit 0.1.0, device cpu, ")
    assert "torch 2." in heading
    assert titles.split() == ["check", "passed", "failed", "seconds"]
    assert sums.split()[:3] == ["rows_sum_to_one", "2", "0"]
    assert golden.split()[:4] == ["golden", "losses", "1", "0"]
    assert verdict.startswith("3 of 3 checks passed on cpu, 0 failed, in ")


@pytest.mark.usefixtures("subset", "wrong_mixers")
def test_failing_check_is_named_with_its_error_and_exit_code_is_1(command: Command) -> None:
    status, out, err = command("selftest", "--only", "rows")
    assert (status, err) == (1, "")
    line = "FAILED rows_sum_to_one, 2 of 2: softmax: differs by 1.00e+00 of the largest entry, allowed 1e-05; also relu"
    assert line in out.splitlines()
    assert "0 of 2 checks passed on cpu, 2 failed" in out


@pytest.mark.usefixtures("subset", "wrong_mixers")
def test_json_holds_environment_tallies_and_failures(command: Command) -> None:
    status, out, err = command("selftest", "--only", "rows", "--json")
    summary: dict[str, Any] = json.loads(out)
    assert status == 1
    assert "FAILED rows_sum_to_one" in err
    assert summary["environment"]["device"] == "cpu"
    tally = summary["checks"]["rows_sum_to_one"]
    assert (tally["passed"], tally["failed"]) == (0, 2)
    assert [failure["subject"] for failure in summary["failures"]] == ["softmax", "relu"]
    assert all(failure["excess"] > 1e4 for failure in summary["failures"])


def test_absent_device_gives_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, out, err = command("selftest", "--device", "cuda")
    assert (status, out) == (2, "")
    assert err.startswith("favorit: device cuda is not available to torch ")
    assert len(err.splitlines()) == 1
