"""Golden losses: training a tiny model reproduces recorded losses. This detects changes that no other test covers."""

from __future__ import annotations

import pytest

from favorit.selftest import golden
from favorit.selftest.devices import CPU
from favorit.selftest.inputs import TooFarError


def test_tiny_model_reproduces_the_golden_losses() -> None:
    kept = golden.recorded_losses()
    assert len(kept) == golden.STEPS
    assert kept[-1] < 0.8 * kept[0], "the kept run learns"
    assert golden.losses() == pytest.approx(kept, rel=1e-3), "if this is meant: python -m favorit.selftest.golden"


def test_one_loss_outside_the_tolerance_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    golden.losses_are_golden()
    *others, last = golden.recorded_losses()
    monkeypatch.setattr(golden, "losses", lambda device: [*others, (1 - 2 * CPU.golden) * last])
    with pytest.raises(TooFarError, match=r"differs by 2.00e-03 of a golden loss, allowed 1e-03"):
        golden.losses_are_golden()
