"""`train.deterministic`: the settings during a run, and their restoration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.backends import cudnn

import favorit
from favorit.training.determinism import CUBLAS, deterministic
from training_helpers import LIVELY, Outcome, assert_bit_equal, fit, tiny

OFF = (0, False, True, None)


def settings() -> tuple[Any, ...]:
    return torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark, os.environ.get(CUBLAS)


@pytest.fixture(autouse=True)
def _fast_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that differ from the deterministic ones."""
    monkeypatch.setattr(cudnn, "benchmark", True)
    monkeypatch.delenv(CUBLAS, raising=False)


def settings_while_training(out: Path, **train: Any) -> set[tuple[Any, ...]]:
    found = set()
    favorit.train(
        tiny(train=dict(epochs=1, **train)), out=out, accelerator="cpu", listen=lambda *_: found.add(settings())
    )
    return found


def test_deterministic_run_sets_and_restores_all_settings(tmp_path: Path):
    assert settings_while_training(tmp_path, deterministic=True) == {(2, True, False, ":4096:8")}
    assert settings() == OFF


def test_ordinary_run_keeps_the_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(CUBLAS, ":16:8")
    assert settings_while_training(tmp_path) == {(0, False, True, ":16:8")}


def test_settings_are_restored_after_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(CUBLAS, ":16:8")
    with pytest.raises(ZeroDivisionError), deterministic(True):
        1 / (2 - torch.get_deterministic_debug_mode())
    assert settings() == (0, False, True, ":16:8")


def test_warn_only_mode_is_restored():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic(True):
            assert torch.get_deterministic_debug_mode() == 2
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_cpu_run_is_bit_equal_to_an_ordinary_run(tmp_path: Path):
    plain, _ = fit(tmp_path, tiny(**LIVELY))
    deterministic_run, _ = fit(tmp_path, tiny(**{**LIVELY, "train": {**LIVELY["train"], "deterministic": True}}))
    assert deterministic_run.id != plain.id
    assert_bit_equal(Outcome.of(deterministic_run), Outcome.of(plain))
