"""Comparisons of whole training steps: ours with vit-pytorch, transformers, performer-pytorch and a plain ViT.

Outputs and gradients are equal, except where our linear attention is compared with the softmax of a plain ViT. In the
last block, the peers compute all tokens, ours only those that the head reads.
Images are 32 x 32 in patches of 4, dim = heads x head width, mlp_dim = 4 dim, no dropout.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from favorit.bench.peers.attention import PERFORMER, PERFORMERS, import_peer, without_eps
from favorit.bench.peers.comparison import (
    CLASSES,
    Comparison,
    Implementation,
    Sizes,
    default_adamw,
    our_adamw,
    step_call,
)
from favorit.bench.peers.plain_vit import Fused, Packed, PlainBlock, PlainViT
from favorit.bench.peers.weight_transfer import LayerWeights, ViTWeights, load_weights
from favorit.config import ModelConfig
from favorit.errors import FavoritError
from favorit.model import ViT, create_model

SIDE, PATCH = 32, 4


def random_images(sizes: Sizes) -> tuple[Tensor, ...]:
    """One random batch."""
    return (torch.randn(sizes.batch, 3, SIDE, SIDE),)


def _ours(layout: str, qkv_bias: bool = True) -> Implementation:
    def build(sizes: Sizes) -> ViT:
        config = ModelConfig(
            dim=sizes.dim,
            depth=sizes.depth,
            heads=sizes.heads,
            mlp_dim=4 * sizes.dim,
            layout=layout.format(m=sizes.m),
            qkv_bias=qkv_bias,
        )
        return create_model(config, seed=0)

    return Implementation(build, step_call(random_images, our_adamw))


def _plain(attention: Callable[[Sizes], nn.Module]) -> Implementation:
    def build(sizes: Sizes) -> PlainViT:
        return PlainViT(lambda: attention(sizes), dim=sizes.dim, depth=sizes.depth, mlp_dim=4 * sizes.dim)

    return Implementation(build, step_call(random_images, default_adamw))


def plain_weights(model: PlainViT, attention_weights: Callable[[Any], dict[str, Any]]) -> ViTWeights:
    """The weights of a plain ViT; `attention_weights` returns qkv, out and rows of an attention layer."""
    layers = [
        LayerWeights(
            norm_attention=block.norm_attention,
            norm_mlp=block.norm_mlp,
            mlp=[module for module in block.mlp if isinstance(module, nn.Linear)],
            **attention_weights(block.attention),
        )
        for block in model.blocks
        if isinstance(block, PlainBlock)
    ]
    patches = model.patches.state_dict()
    return ViTWeights(
        (patches["weight"], patches["bias"]), model.class_token, model.positions, layers, model.norm, model.head
    )


def packed_attention_weights(layer: Packed) -> dict[str, Any]:
    """The weights of a packed layer, with the random rows if its function is performer-pytorch's."""
    return {"qkv": [layer.qkv], "out": layer.out, "rows": getattr(layer.attention, "projection_matrix", None)}


def _separate_projections(layer: Any) -> dict[str, Any]:
    return {
        "qkv": [layer.to_q, layer.to_k, layer.to_v],
        "out": layer.to_out,
        "rows": layer.fast_attention.projection_matrix,
    }


def _performer(generalized: bool) -> Implementation:
    def attention(sizes: Sizes) -> nn.Module:
        return import_peer("performer_pytorch").SelfAttention(
            sizes.dim,
            heads=sizes.heads,
            dim_head=sizes.head_dim,
            nb_features=sizes.m,
            generalized_attention=generalized,
        )

    return _plain(attention)


def _vit_module() -> ModuleType:
    """vit-pytorch's module `vit`, loaded from its file: importing the package would require torchvision."""
    package = importlib.util.find_spec("vit_pytorch")
    folders = package.submodule_search_locations if package is not None else None
    if not folders:
        raise FavoritError("vit-pytorch is not installed")
    spec = importlib.util.spec_from_file_location("vit_pytorch_vit", Path(folders[0]) / "vit.py")
    if spec is None or spec.loader is None:
        raise FavoritError(f"vit-pytorch has no module vit in {folders[0]}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _vit_pytorch(sizes: Sizes) -> nn.Module:
    model = _vit_module().ViT(
        image_size=SIDE, patch_size=PATCH, num_classes=CLASSES, dim=sizes.dim, depth=sizes.depth, heads=sizes.heads,
        mlp_dim=4 * sizes.dim, dim_head=sizes.head_dim,
    )  # fmt: skip
    # Ours has no norms before and after the patch projection. Without these norms, both compute the same function.
    model.to_patch_embedding[1] = model.to_patch_embedding[3] = nn.Identity()
    return model


def _copy_vit_pytorch(ours: ViT, theirs: Any) -> None:
    projection = theirs.to_patch_embedding[2]
    weight = projection.weight.unflatten(1, (PATCH, PATCH, 3)).permute(0, 3, 1, 2)
    layers = [
        LayerWeights(attention.norm, [attention.to_qkv], attention.to_out[0], mlp.net[0], (mlp.net[1], mlp.net[4]))
        for attention, mlp in theirs.transformer.layers
    ]
    weights = ViTWeights(
        (weight, projection.bias),
        theirs.cls_token,
        theirs.pos_embedding,
        layers,
        theirs.transformer.norm,
        theirs.mlp_head,
    )
    load_weights(ours, weights)


class _Logits(nn.Module):
    """A transformers model that returns logits."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        library = import_peer("transformers")
        config = library.ViTConfig(
            hidden_size=sizes.dim, num_hidden_layers=sizes.depth, num_attention_heads=sizes.heads,
            intermediate_size=4 * sizes.dim, image_size=SIDE, patch_size=PATCH, num_labels=CLASSES,
            attn_implementation="sdpa",
            layer_norm_eps=1e-5,  # the default of torch and of ours
        )  # fmt: skip
        self.model = library.ViTForImageClassification(config)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixels).logits


def _copy_transformers(ours: ViT, theirs: Any) -> None:
    vit = theirs.model.vit
    layers = []
    for layer in vit.layers:
        attention = layer.attention
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        mlp = (layer.mlp.fc1, layer.mlp.fc2)
        layers.append(LayerWeights(layer.layernorm_before, projections, attention.o_proj, layer.layernorm_after, mlp))
    embeddings = vit.embeddings
    patches = embeddings.patch_embeddings.projection
    weights = ViTWeights(
        (patches.weight, patches.bias),
        embeddings.cls_token,
        embeddings.position_embeddings,
        layers,
        vit.layernorm,
        theirs.model.classifier,
    )
    load_weights(ours, weights)


_FUSED = _plain(lambda sizes: Packed(sizes.dim, sizes.heads, Fused()))

STEP_COMPARISONS = [
    Comparison(
        case="step",
        name="softmax",
        peer="plain ViT, SDPA",
        ours=_ours("softmax"),
        theirs=_FUSED,
        inputs=random_images,
        copy_weights=lambda ours, theirs: load_weights(ours, plain_weights(theirs, packed_attention_weights)),
    ),
    Comparison(
        case="step",
        name="softmax",
        peer="vit-pytorch",
        package="vit_pytorch",
        ours=_ours("softmax", qkv_bias=False),
        theirs=Implementation(_vit_pytorch, step_call(random_images, default_adamw)),
        inputs=random_images,
        copy_weights=_copy_vit_pytorch,
    ),
    Comparison(
        case="step",
        name="softmax",
        peer="transformers, SDPA",
        package="transformers",
        ours=_ours("softmax"),
        theirs=Implementation(_Logits, step_call(random_images, default_adamw)),
        inputs=random_images,
        copy_weights=_copy_transformers,
    ),
    *(
        Comparison(
            case="step",
            name=name,
            peer=PERFORMER,
            package="performer_pytorch",
            ours=_ours(name, qkv_bias=False),
            theirs=_performer(generalized),
            inputs=random_images,
            copy_weights=lambda ours, theirs: load_weights(ours, plain_weights(theirs, _separate_projections)),
            without_extras=without_eps,
        )
        for name, generalized in PERFORMERS.items()
    ),
    # The cost of linear attention relative to softmax: the mathematics differs on purpose.
    *(
        Comparison(
            case="step",
            name=name,
            peer="plain ViT, SDPA",
            ours=_ours(name),
            theirs=_FUSED,
            inputs=random_images,
            copy_weights=None,
        )
        for name in PERFORMERS
    ),
]
