"""Training a tiny model gives the losses it always gave: what no other test notices, this one does."""

from __future__ import annotations

import json

import pytest

from golden.regenerate import FILE, STEPS, losses


def test_tiny_model_trains_as_it_always_did():
    kept = json.loads(FILE.read_text())
    assert len(kept) == STEPS
    assert kept[-1] < 0.8 * kept[0], "the kept run learns"
    assert losses() == pytest.approx(kept, rel=1e-3), "if this is meant: python tests/golden/regenerate.py, and say why"
