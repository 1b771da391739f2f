"""The trials of a device, the outcomes of failures, and the available devices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from favorit import FavoritError
from favorit.attention import build_mixer
from favorit.selftest import short_run
from favorit.selftest.checks import MIXER_CHECKS, NEEDS_FP64, REQUIRED_CHECKS
from favorit.selftest.devices import CPU, Device, find_device
from favorit.selftest.inputs import TooFarError, assert_close, builder, tensors
from favorit.selftest.run import Trial, attempt, list_trials, run_trials, tally

# A device without fp64 and bf16, such as an older Mac. It runs on the CPU.
NARROW = Device(slack=10, has_fp64=False, half=(torch.float16,), precisions=("32",))


def test_trials_are_all_promises_the_golden_losses_and_a_training_per_precision() -> None:
    trials = list_trials(CPU)
    assert [(each.check, each.subject) for each in trials[: len(REQUIRED_CHECKS)]] == [
        (p.check, p.spec) for p in REQUIRED_CHECKS
    ]
    rest = [(each.check, each.subject) for each in trials[len(REQUIRED_CHECKS) :]]
    assert rest == [("golden losses", "vit-64"), ("training", "32"), ("training", "bf16")]


def test_device_without_fp64_skips_only_checks_of_fp64() -> None:
    skipped = {each[:2] for each in list_trials(CPU)} - {each[:2] for each in list_trials(NARROW)}
    assert {check for check, _ in skipped} == {*NEEDS_FP64, "training"}


@pytest.mark.parametrize("check", [check for check in MIXER_CHECKS if check not in NEEDS_FP64])
def test_check_on_a_device_without_fp64_requests_only_fp32(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check passes and requests no input in fp64."""
    requested: set[torch.dtype] = set()
    right = Device.tensors

    def record(self: Device, *arguments: Any, **options: Any) -> Any:
        found = right(self, *arguments, **options)
        requested.update(x.dtype for x in found)
        return found

    monkeypatch.setattr(Device, "tensors", record)
    MIXER_CHECKS[check](builder("favor(m=24)"), NARROW)
    assert requested == {torch.float32}


def test_slack_widens_only_the_tolerance_of_its_device() -> None:
    one, other = torch.ones(1), torch.ones(1) + 5e-5
    NARROW.assert_close(other, one, 1e-5)
    with pytest.raises(TooFarError):
        CPU.assert_close(other, one, 1e-5)


@pytest.mark.parametrize("value", [1.1, math.nan])
def test_large_and_nan_differences_are_rejected(value: float) -> None:
    with pytest.raises(TooFarError):
        assert_close(torch.tensor(value), torch.tensor(1.0), 1e-2)


def test_only_selects_by_check_or_spec() -> None:
    assert {trial.check for trial in list_trials(CPU, "golden")} == {"golden losses"}
    assert {trial.subject for trial in list_trials(CPU, "clamp=2.0")} == {"exp(clamp=2.0)"}
    with pytest.raises(FavoritError, match="--only 'gloden': no check and no spec contains it; checks: weights_times"):
        list_trials(CPU, "gloden")


def too_far(excess: float) -> None:
    raise TooFarError(excess * 1e-3, 1e-3)


def bare_assertion() -> None:
    raise AssertionError


def missing_operation() -> None:
    raise NotImplementedError("no such operation on this device\nand many lines of help")


def test_outcomes_of_passes_failures_and_exceptions() -> None:
    passed = attempt(Trial("check", "spec", lambda: None))
    assert (passed.error, passed.excess) == (None, 0.0)
    failed = attempt(Trial("check", "spec", lambda: too_far(2)))
    assert failed.error == "differs by 2.00e-03 of the largest entry, allowed 1e-03"
    assert failed.excess == pytest.approx(2)
    assert attempt(Trial("check", "spec", lambda: too_far(math.nan))).excess == math.inf
    assert attempt(Trial("check", "spec", bare_assertion))[3:] == ("raise AssertionError", math.inf)
    expected = "NotImplementedError: no such operation on this device", math.inf
    assert attempt(Trial("check", "spec", missing_operation))[3:] == expected


def test_tally_puts_the_largest_failure_of_each_check_first() -> None:
    trials = [
        Trial("sums", "softmax", lambda: too_far(2)),
        Trial("sums", "relu", lambda: too_far(30)),
        Trial("masks", "relu", lambda: None),
        Trial("sums", "favor", lambda: None),
    ]
    heard: list[tuple[int, int]] = []
    sums, masks = tally(run_trials(trials, lambda done, total: heard.append((done, total))))
    assert (sums.check, sums.passed, [each.subject for each in sums.failures]) == ("sums", 1, ["relu", "softmax"])
    assert (masks.check, masks.passed, masks.failures) == ("masks", 1, [])
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_moved_builder_moves_parameters_and_random_features() -> None:
    mixer = Device("meta").moved(builder("relu(m=24, temperature=True)"))(head_dim=4, tokens=5)
    assert all(x.is_meta for x in (*mixer.parameters(), *mixer.buffers()))
    assert all(x.is_meta for x in Device("meta").tensors(5, 4))


def test_absent_or_unknown_device_is_rejected_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("cuda", "mps"):
        with pytest.raises(FavoritError, match=rf"device {name} is not available to torch .* here; available: cpu$"):
            find_device(name)
    with pytest.raises(FavoritError, match="unknown device 'cdua': did you mean 'cuda'"):
        find_device("cdua")


@pytest.mark.parametrize("has_bf16", [True, False])
def test_precisions_are_those_that_the_device_supports(monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_bf16)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: has_bf16)
    for name in ("cuda", "mps"):
        device = find_device(name)
        assert device.type == name
        assert device.has_fp64 == (name == "cuda")
        assert (torch.bfloat16 in device.half) == ("bf16" in device.precisions) == has_bf16
        assert {"32", "fp16"} <= set(device.precisions)


def test_tolerances_on_the_cpu_are_not_widened() -> None:
    assert (CPU.slack, CPU.golden) == (1.0, 1e-3)
    assert CPU.tolerances == {torch.float32: 2e-5, torch.float64: 1e-11}
    q, _, _ = CPU.tensors(3, 4)
    assert torch.equal(q, tensors(3, 4)[0])
    assert build_mixer("softmax", heads=2, head_dim=4)(*CPU.tensors(3, 4)).shape == q.shape


def test_training_takes_two_steps_that_differ() -> None:
    first, mean_of_both = short_run.step_losses("32", CPU)
    assert mean_of_both < 0.95 * first


def test_training_with_other_losses_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"32": [2.0, 1.5], "bf16": [2.0, 1.8]}
    monkeypatch.setattr(short_run, "step_losses", lambda precision, device: losses[precision])
    short_run.trains_as_in_fp32("32")
    with pytest.raises(TooFarError, match=r"differs by 2.00e-01 of the loss in fp32 on the CPU, allowed 5e-02"):
        short_run.trains_as_in_fp32("bf16")
