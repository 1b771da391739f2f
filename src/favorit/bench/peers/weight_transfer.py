"""Copies the weights of another library's Vision Transformer into ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from favorit.model import ViT


@dataclass(frozen=True)
class LayerWeights:
    """One layer of a ViT. `qkv` is one packed linear layer or three; `rows` are the rows of random features, if any."""

    norm_attention: nn.LayerNorm
    qkv: Sequence[nn.Linear]
    out: nn.Linear
    norm_mlp: nn.LayerNorm
    mlp: Sequence[nn.Linear]
    rows: Tensor | None = None


@dataclass(frozen=True)
class ViTWeights:
    """A whole ViT. `patches` is the patch projection as a convolution: (weight, bias)."""

    patches: tuple[Tensor, Tensor]
    class_token: Tensor
    positions: Tensor
    layers: Iterable[LayerWeights]
    norm: nn.LayerNorm
    head: nn.Linear


def load_weights(ours: ViT, weights: ViTWeights) -> None:
    """Copies all weights into `ours`. `load_state_dict` raises an error if one of its parameters is missing."""
    dim = ours.config.dim
    state = {
        "stem.projection.weight": weights.patches[0],
        "stem.projection.bias": weights.patches[1],
        "class_token": weights.class_token.reshape(-1, dim),
        "position.parts.0.table": weights.positions.reshape(-1, dim),
    }
    for index, layer in enumerate(weights.layers):
        block = f"blocks.{index}"
        attention = f"{block}.attention.branch"
        state[f"{attention}.qkv.weight"] = torch.cat([linear.weight for linear in layer.qkv])
        if layer.qkv[0].bias is not None:
            state[f"{attention}.qkv.bias"] = torch.cat([linear.bias for linear in layer.qkv])
        if layer.rows is not None:
            state[f"{attention}.mixer.kernel.projection.rows"] = layer.rows
        first, second = layer.mlp
        state |= _prefixed(f"{block}.attention.before", layer.norm_attention)
        state |= _prefixed(f"{attention}.out", layer.out)
        state |= _prefixed(f"{block}.feed_forward.before", layer.norm_mlp)
        state |= _prefixed(f"{block}.feed_forward.branch.0", first)
        state |= _prefixed(f"{block}.feed_forward.branch.3", second)
    state |= _prefixed("head.norm", weights.norm)
    state |= _prefixed("head.out", weights.head)
    ours.load_state_dict(state)


def _prefixed(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}.{key}": value for key, value in module.state_dict().items()}
