"""Golden losses: training a tiny model reproduces recorded losses, to notice changes that no other test covers."""

from __future__ import annotations

import json

import pytest

from golden.regenerate import FILE, STEPS, losses


def test_tiny_model_reproduces_the_golden_losses():
    golden = json.loads(FILE.read_text())
    assert len(golden) == STEPS
    assert golden[-1] < 0.8 * golden[0], "the golden run learns"
    assert losses() == pytest.approx(golden, rel=1e-3), "if intended: python tests/golden/regenerate.py, and say why"
