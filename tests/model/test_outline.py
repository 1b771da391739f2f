"""Outlines of models on the meta device: they have correct shapes, are fast, and reject no valid model."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from favorit import FavoritError, ModelConfig, create_model, measure
from favorit.cli.main import main
from favorit.model import PRESETS, outline, preset

SMALL = dict(dim=8, heads=2, depth=2, mlp_dim=16)


@pytest.mark.filterwarnings("ignore:stem 'conv.* makes a single token")
@pytest.mark.parametrize("name", PRESETS)
def test_outline_has_the_shapes_of_the_model(name: str) -> None:
    config = preset(name).replace(depth=1)
    found, built = outline.outline(config).state_dict(), create_model(config, seed=0).state_dict()
    assert all(tensor.is_meta for tensor in found.values())
    assert {key: (tensor.shape, tensor.dtype) for key, tensor in found.items()} == {
        key: (tensor.shape, tensor.dtype) for key, tensor in built.items()
    }


def test_outline_does_not_load_the_torch_compiler() -> None:
    """Random initialization on the meta device would import it, which takes two seconds."""
    code = """
import sys
from favorit.model import PRESETS, outline, preset
loaded = [name for name in PRESETS if (outline.outline(preset(name)), "torch._dynamo" in sys.modules)[1]]
sys.exit(", ".join(loaded) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_weights_larger_than_free_memory_are_rejected_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(**SMALL)
    bytes_needed = sum(tensor.nbytes for tensor in create_model(config, seed=0).state_dict().values())
    monkeypatch.setattr(measure, "free_memory", lambda: bytes_needed)
    outline.check_memory(config)
    monkeypatch.setattr(measure, "free_memory", lambda: None)
    outline.check_memory(config)
    monkeypatch.setattr(measure, "free_memory", lambda: bytes_needed - 1)
    with pytest.raises(
        FavoritError,
        match=r"need 0\.0 GiB and 0\.0 are free.*model\.dim \(8\), model\.mlp_dim \(16\) or model\.depth \(2\)",
    ):
        outline.check_memory(config)


@pytest.mark.parametrize(
    "command", [["show", "vit-64"], ["train", "--preset", "vit-64"], ["bench", "speed", "--preset", "vit-64"]]
)
def test_commands_reject_models_larger_than_free_memory(
    command: list[str], tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["favorit", *command, "--set", "model.dim=60000"])
    with pytest.raises(SystemExit) as ended:
        sys.exit(main())
    assert ended.value.code == 2
    assert "GiB and" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "no run is started"


def test_component_that_reads_values_while_built_is_not_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*_: object, **__: object) -> nn.Module:
        if torch.ones(()).item():
            return nn.Identity()
        raise AssertionError

    monkeypatch.setattr(outline, "create_model", create)
    with pytest.raises(RuntimeError):
        outline.outline(ModelConfig(**SMALL))
    outline.check_memory(ModelConfig(**SMALL))
