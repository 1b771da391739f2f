"""The weights of another library's Vision Transformer in the names of ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from favorit.model import ViT


@dataclass(frozen=True)
class LayerParts:
    """One layer: norms, the linear layers of q, k and v (one packed or three), output, feed-forward, and random rows
    where there are.
    """

    norm_attention: nn.LayerNorm
    qkv: Sequence[nn.Linear]
    out: nn.Linear
    norm_mlp: nn.LayerNorm
    mlp: Sequence[nn.Linear]
    rows: Tensor | None = None


@dataclass(frozen=True)
class Parts:
    """A whole model: the patch projection as a convolution (weight, bias), class token, positions, layers, last norm
    and head.
    """

    patches: tuple[Tensor, Tensor]
    class_token: Tensor
    positions: Tensor
    layers: Iterable[LayerParts]
    norm: nn.LayerNorm
    head: nn.Linear


def adopt_parts(ours: ViT, parts: Parts) -> None:
    """Copies all of it; what ours has and the parts lack is an error of `load_state_dict`."""
    width = ours.config.dim
    state = {
        "stem.projection.weight": parts.patches[0],
        "stem.projection.bias": parts.patches[1],
        "class_token": parts.class_token.reshape(-1, width),
        "position.parts.0.table": parts.positions.reshape(-1, width),
    }
    for number, layer in enumerate(parts.layers):
        name = f"blocks.{number}"
        state |= _named(f"{name}.attention.before", layer.norm_attention)
        state[f"{name}.attention.branch.qkv.weight"] = torch.cat([linear.weight for linear in layer.qkv])
        if layer.qkv[0].bias is not None:
            state[f"{name}.attention.branch.qkv.bias"] = torch.cat([linear.bias for linear in layer.qkv])
        if layer.rows is not None:
            state[f"{name}.attention.branch.mixer.kernel.projection.rows"] = layer.rows
        state |= _named(f"{name}.attention.branch.out", layer.out) | _named(
            f"{name}.feed_forward.before", layer.norm_mlp
        )
        first, second = layer.mlp
        state |= _named(f"{name}.feed_forward.branch.0", first) | _named(f"{name}.feed_forward.branch.3", second)
    ours.load_state_dict(state | _named("head.norm", parts.norm) | _named("head.out", parts.head))


def _named(name: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.{key}": value for key, value in module.state_dict().items()}
