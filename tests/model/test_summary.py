"""Summaries: parameters and FLOPs add up, and FLOPs equal a count by hand."""

from __future__ import annotations

import pytest
import torch

from favorit import create_model
from favorit.measure import parameters
from favorit.model.summary import Row, summarize


def rows(**overrides) -> dict[str, Row]:
    return {row.layer: row for row in summarize(create_model("vit-64", seed=0, **overrides))}


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        dict(layout="performer_first", performer="learned(m=8)", position="learned+string_gate"),
        dict(layout="linformer(k=8)", head="mlp(16)", mlp_dim=0, qk_norm=True, local="dwconv(3)"),
        dict(stem="conv(channels=(4,), pool=each)", head="seqpool", position="none", image_size=(8, 12)),
    ],
    ids=["vit-64", "performers", "linformer", "conv"],
)
def test_parameters_and_flops_add_up_to_those_of_the_model(overrides):
    model = create_model("vit-64", seed=0, **overrides)
    found = summarize(model)
    assert sum(row.parameters for row in found) == parameters(model)
    assert [row.layer for row in found][:2] == ["stem", "position"]
    assert found[-1].layer == "head"
    assert len(found) == 3 + model.config.depth * (2 if model.config.mlp_dim else 1)
    assert all(row.flops > 0 for row in found if row.layer != "position")
    for row in found:
        assert len(row.parts) != 1
        for name in ("parameters", "trainable", "flops") if row.parts else ():
            assert sum(getattr(part, name) for part in row.parts) == getattr(row, name), (row.layer, name)


def test_flops_of_known_layers_equal_a_count_by_hand():
    """Two FLOPs for each multiply-add. Images of 32x32 in patches of 4 have 64 tokens, plus the class token."""
    dim, hidden, heads, width, n = 64, 128, 4, 16, 65
    found = rows()
    linear = 2 * n * dim * 3 * dim + 2 * n * dim * dim
    scores_and_mean = 2 * heads * n * n * width + 2 * heads * n * n * width
    assert found["stem"].flops == 2 * 64 * (3 * 4 * 4) * dim
    assert found["blocks.0.attention"].flops == linear + scores_and_mean
    assert found["blocks.0.feed_forward"].flops == 2 * (2 * n * dim * hidden)
    assert found["head"].flops == 2 * dim * 10


def test_flops_of_linear_attention_are_linear_in_the_tokens():
    """relu: projections of q and k to M features, then phi(k)^T v and phi(q) (...), each N M D multiply-adds."""
    dim, heads, width, m, n = 64, 4, 16, 32, 65
    found = rows(layout="relu(m=32)")["blocks.0.attention"]
    linear = 2 * n * dim * 3 * dim + 2 * n * dim * dim
    assert found.flops == linear + heads * (2 * 2 * n * m * width + 2 * 2 * n * m * width)


def test_rows_have_kind_shape_and_sizes():
    found = rows(layout="favor(m=64)|softmax|favor(m=32)|softmax", image_size=(8, 16), classes=7)
    assert [found[f"blocks.{layer}.attention"].kind for layer in range(4)] == [
        "favor(m=64)",
        "softmax",
        "favor(m=32)",
        "softmax",
    ]
    assert found["stem"] == Row("stem", "patch(4)", (8, 64), 3 * 16 * 64 + 64, 3 * 16 * 64 + 64, 2 * 8 * 48 * 64)
    assert found["position"] == Row("position", "learned", (9, 64), (1 + 9) * 64, (1 + 9) * 64, 0)
    assert (found["blocks.2.feed_forward"].shape, found["head"].shape) == ((9, 64), (7,))
    # The head reads only the class token of the last block.
    assert found["blocks.3.attention"].shape == found["blocks.3.feed_forward"].shape == (1, 64)


def test_parts_are_modules_in_call_order():
    found = rows(layout="relu(m=8)", position="learned+rope2d", qk_norm=True, local="dwconv(3)", norm="post")
    parts = found["blocks.1.attention"].parts
    assert [part.layer.removeprefix("blocks.1.attention.") for part in parts] == [
        "branch.qkv",
        "branch.norm_q",
        "branch.norm_k",
        "branch.position",
        "branch.mixer",
        "branch.local.filter",
        "branch.out",
        "after",
    ]
    assert [part.kind for part in parts] == [
        "Linear",
        "HeadNorm",
        "HeadNorm",
        "Rope2d",
        "relu(m=8)",
        "Conv2d",
        "Linear",
        "LayerNorm",
    ]
    assert parts[0].shape == (65, 192)
    assert parts[3].shape == parts[4].shape == (4, 65, 16)
    # In each of 4 heads: q and k times the projection, keys times values, queries times that product.
    assert parts[4].flops == 4 * (2 * 2 * 65 * 8 * 16 + 2 * 2 * 65 * 8 * 16)


def test_last_block_reading_one_token_has_all_its_parts():
    parts = {part.layer.rpartition(".")[2]: part for part in rows()["blocks.3.attention"].parts}
    assert list(parts) == ["before", "qkv", "mixer", "out"]
    assert parts["mixer"].shape == (4, 1, 16)
    assert parts["qkv"].parameters == 3 * 64 * 64 + 3 * 64
    assert parts["out"].flops == 2 * 64 * 64


def test_frozen_parameters_are_not_trainable():
    model = create_model("vit-64", seed=0)
    model.blocks[0].attention.requires_grad_(False)
    frozen, other = (row for row in summarize(model) if row.layer in ("blocks.0.attention", "blocks.1.attention"))
    assert frozen.parameters == other.parameters == other.trainable
    assert (frozen.trainable, frozen.parts[1].trainable) == (0, 0)
    assert sum(row.trainable for row in summarize(model)) == parameters(model)


@pytest.mark.parametrize("training", [True, False])
def test_summary_leaves_the_model_as_it_was(training):
    model = create_model("vit-64", seed=0, stem="conv(channels=(4,))", image_size=8).train(training)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    summarize(model)
    assert model.training is training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_summary_follows_the_precision_of_the_model():
    assert summarize(create_model("vit-64", seed=0).double())[-1].shape == (10,)
