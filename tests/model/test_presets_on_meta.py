"""Whole models on devices other than the CPU: no operation of forward and backward reads a value, which would raise an
error on `meta`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from favorit.attention import Attention
from favorit.model.outline import outline
from favorit.model.presets import PRESETS, preset
from favorit.model.vit import ViT

BATCH = 2


def step(model: ViT) -> Tensor:
    """Runs one training step on the meta device and returns its loss."""
    config = model.config
    images = torch.empty(BATCH, config.channels, *config.image_size, device="meta")
    labels = torch.empty(BATCH, dtype=torch.int64, device="meta")
    loss = F.cross_entropy(model.train()(images), labels, label_smoothing=0.1)
    loss.backward()
    return loss


@pytest.mark.parametrize("name", PRESETS)
def test_preset_trains_on_meta(name: str) -> None:
    model = outline(preset(name))
    model.redraw(1)
    assert step(model).is_meta
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape
    torch.optim.AdamW(model.parameters()).step()


def test_inference_and_another_image_size_run_on_meta() -> None:
    model = outline(preset("position-favor-irpe")).eval()
    images = torch.empty(BATCH, 3, 48, 48, device="meta")
    with torch.no_grad():
        assert model(images).shape == model.resized(48)(images).shape == (BATCH, 10)


def test_layer_that_reads_values_fails_on_meta() -> None:
    model = outline(preset("vit-64"))
    layer = next(module for module in model.modules() if isinstance(module, Attention))
    layer.register_forward_hook(lambda module, inputs, out: out / out.abs().max().item())
    with pytest.raises(RuntimeError, match="meta"):
        step(model)
