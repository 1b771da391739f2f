"""Checks of tensors read types and shapes only, so they work without values and add nothing to a graph."""

from __future__ import annotations

import pytest
import torch

import favorit
from favorit import FavoritError
from favorit.model import create_model
from favorit.tensors import check_attention_inputs, check_tensor


@pytest.fixture
def layer() -> favorit.Attention:
    return favorit.Attention(16, 2, "relu(m=8)", seed=0)


def test_text_names_a_free_axis_and_a_number_fixes_one() -> None:
    check_tensor("x", torch.zeros(5, 0, 7), ("B", "N", 7))
    for wrong in (torch.zeros(5, 7), torch.zeros(5, 7, 8), torch.zeros(5, 0, 7).int(), None):
        with pytest.raises(FavoritError, match=r"x must be a floating-point tensor of shape \(B, N, 7\), not"):
            check_tensor("x", wrong, ("B", "N", 7))


def test_meta_tensors_are_checked_without_values() -> None:
    q = torch.zeros(2, 4, 5, 8, device="meta")
    check_attention_inputs(q, q, q, torch.ones(2, 5, dtype=torch.bool, device="meta"), 4, 8)
    with pytest.raises(FavoritError, match="q must be"):
        check_attention_inputs(q, q, q, None, 4, 16)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_converts_half_and_single_precision_but_not_double(half: torch.dtype, layer) -> None:
    with torch.autocast("cpu", half):
        layer(torch.zeros(1, 5, 16, dtype=half))
        with pytest.raises(FavoritError, match=r"x is torch.float64, but the weights are torch.float32"):
            layer(torch.zeros(1, 5, 16, dtype=torch.float64))
    with pytest.raises(FavoritError, match=f"x is {half}, but the weights are torch.float32"):
        layer(torch.zeros(1, 5, 16, dtype=half))
    layer.to(half)(torch.zeros(1, 5, 16, dtype=half))


def test_checked_calls_compile_and_export(layer) -> None:
    x = torch.randn(2, 9, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), layer(x))
    with pytest.raises(FavoritError, match="x must be"):
        torch.compile(layer, backend="eager")(x.int())
    model = create_model("vit-64", layout="relu(m=16)|softmax", depth=2, seed=0).eval()
    images = torch.randn(2, 3, 32, 32)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(torch.cat([images] * 3)), model(torch.cat([images] * 3)))


@pytest.mark.parametrize("spec", ["softmax", "relu(m=8)", "favor(m=8)", "uniform", "none", "linformer(k=4)"])
def test_every_mixer_checks_its_inputs(spec: str) -> None:
    mixer = favorit.build_mixer(spec, heads=2, head_dim=8, tokens=5)
    q = torch.zeros(1, 2, 5, 8)
    assert mixer(q, q, q, key_mask=torch.ones(1, 5, dtype=torch.bool)).shape == q.shape
    for wrong in ((q[0], q[0], q[0]), (q[..., :4],) * 3, (q, q, q[:, :, :4]), (q, q[:, :1], q)):
        with pytest.raises(FavoritError, match="must be a floating-point tensor of shape"):
            mixer(*wrong)


def test_mixer_without_known_sizes_accepts_any_width() -> None:
    from favorit.attention.softmax import Softmax

    q = torch.zeros(1, 3, 5, 7)
    assert Softmax()(q, q, q).shape == q.shape
