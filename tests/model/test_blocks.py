"""Blocks against reference implementations of their formulas.

Shapes: B batch, N tokens, C model width.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from checks_model import assert_equal_gradients, randn, scatter
from favorit import Attention, create_model
from favorit.model.block import WIRINGS, Block, DropPath

DIM, HEADS, GRID, PREFIX = 12, 3, (2, 3), 1
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "elu": F.elu, "silu": F.silu}


def build(norm: str, mlp_dim: int = 20, act: str = "gelu", dropout: float = 0.0, drop_path: float = 0.0) -> Block:
    attention = Attention(DIM, HEADS, "softmax", prefix=PREFIX)
    return scatter(Block(attention, DIM, mlp_dim, norm, act, dropout, drop_path).double(), 0.3)


def attend(attention: Attention, x: Tensor) -> Tensor:
    """Reference softmax attention, head by head."""
    q, k, v = (x @ attention.qkv.weight.mT + attention.qkv.bias).split(DIM, -1)
    width = DIM // HEADS
    heads = [slice(head * width, (head + 1) * width) for head in range(HEADS)]
    mixed = [torch.softmax(q[..., head] @ k[..., head].mT / width**0.5, -1) @ v[..., head] for head in heads]
    return torch.cat(mixed, -1) @ attention.out.weight.mT + attention.out.bias


def feed_forward(network: nn.Sequential, act: str, x: Tensor) -> Tensor:
    hidden = ACTIVATIONS[act](x @ network[0].weight.mT + network[0].bias)
    return hidden @ network[3].weight.mT + network[3].bias


def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


FORMULAS = {
    "pre": lambda part, f, x: x + f(layer_norm(part.before, x)),
    "post": lambda part, f, x: layer_norm(part.after, x + f(x)),
    "double": lambda part, f, x: layer_norm(part.after, x + f(layer_norm(part.before, x))),
    "double_inner": lambda part, f, x: layer_norm(
        part.after, layer_norm(part.before, x) + f(layer_norm(part.before, x))
    ),
}


def reference(block: Block, norm: str, act: str, x: Tensor) -> Tensor:
    x = FORMULAS[norm](block.attention, lambda y: attend(block.attention.branch, y), x)
    if block.feed_forward is None:
        return x
    return FORMULAS[norm](block.feed_forward, lambda y: feed_forward(block.feed_forward.branch, act, y), x)


def test_every_wiring_has_its_formula():
    assert set(FORMULAS) == set(WIRINGS)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("mlp_dim", [0, 20])
@pytest.mark.parametrize("norm", FORMULAS)
def test_block_equals_its_formula_in_values_and_gradients(norm, mlp_dim, act):
    block = build(norm, mlp_dim, act)
    x = randn(2, 7, DIM).requires_grad_()
    assert_equal_gradients(block, block(x, GRID, PREFIX), reference(block, norm, act, x), x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", FORMULAS)
def test_block_with_mlp_dim_0_has_no_feed_forward(norm):
    block = build(norm, mlp_dim=0)
    assert block.feed_forward is None
    assert not any("feed_forward" in name for name, _ in block.named_parameters())


@pytest.mark.parametrize("kind", ["dropout", "drop_path"])
def test_dropout_and_drop_path_act_in_training_only(kind):
    block, plain = build("pre", **{kind: 0.5}), build("pre")
    plain.load_state_dict(block.state_dict())
    x = randn(4, 7, DIM)
    torch.manual_seed(0)
    assert not torch.equal(block(x, GRID, PREFIX), block(x, GRID, PREFIX))
    assert torch.equal(block.eval()(x, GRID, PREFIX), plain(x, GRID, PREFIX))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drop_path_drops_the_branch_of_whole_images_and_keeps_the_mean(p):
    images = 40_000
    torch.manual_seed(0)
    out = DropPath(p)(torch.ones(images, 2, 3, dtype=torch.float64))
    assert (out == out[:, :1, :1]).all(), "an image is kept or dropped as a whole"
    kept = out[:, 0, 0] > 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    deviation = (p / (1 - p) / images) ** 0.5
    assert abs(out.mean().item() - 1) < 4 * deviation


def test_stochastic_depth_rate_grows_linearly_with_the_layer():
    model = create_model("vit-64", depth=5, drop_path=0.4, seed=0)
    rates = [[module.p for module in block.modules() if isinstance(module, DropPath)] for block in model.blocks]
    assert rates == [pytest.approx([0.1 * layer] * 2) for layer in range(5)]
