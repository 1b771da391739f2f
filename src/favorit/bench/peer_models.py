"""Whole training steps with equal outputs and gradients: ours against vit-pytorch, transformers, performer-pytorch in a
plain ViT, and a plain ViT. Theirs compute all tokens of the last block, ours those that the head reads.

Images are 32 x 32 in patches of 4, dim = heads x head width, the feed-forward network four times as wide, no dropout.
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

from favorit.bench.comparison import CLASSES, Comparison, Contender, Sizes, our_adamw, plain_adamw, work_of_step
from favorit.bench.peer_attention import PERFORMER, PERFORMERS, imported, without_eps
from favorit.bench.plain import Fused, Packed, PlainBlock, PlainViT
from favorit.bench.weights import LayerParts, Parts, adopt_parts
from favorit.config import ModelConfig
from favorit.errors import FavoritError
from favorit.model import ViT, create_model

SIDE, PATCH = 32, 4


def images(sizes: Sizes) -> tuple[Tensor, ...]:
    """One batch."""
    return (torch.randn(sizes.batch, 3, SIDE, SIDE),)


def _ours(layout: str, qkv_bias: bool = True) -> Contender:
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

    return Contender(build, work_of_step(images, our_adamw))


def _plain(attention: Callable[[Sizes], nn.Module]) -> Contender:
    def build(sizes: Sizes) -> PlainViT:
        return PlainViT(lambda: attention(sizes), dim=sizes.dim, depth=sizes.depth, mlp_dim=4 * sizes.dim)

    return Contender(build, work_of_step(images, plain_adamw))


def plain_parts(model: PlainViT, attention: Callable[[Any], dict[str, Any]]) -> Parts:
    """The parts of a plain ViT; `attention` finds qkv, out and rows in its attention layer."""
    layers = [
        LayerParts(
            norm_attention=block.norm_attention,
            norm_mlp=block.norm_mlp,
            mlp=[part for part in block.mlp if isinstance(part, nn.Linear)],
            **attention(block.attention),
        )
        for block in model.blocks
        if isinstance(block, PlainBlock)
    ]
    patches = model.patches.state_dict()
    return Parts(
        (patches["weight"], patches["bias"]), model.class_token, model.positions, layers, model.norm, model.head
    )


def packed_attention(layer: Packed) -> dict[str, Any]:
    """Of a packed layer; the random rows are those of performer-pytorch's function, where that is what it holds."""
    return {"qkv": [layer.qkv], "out": layer.out, "rows": getattr(layer.attend, "projection_matrix", None)}


def _three_projections(layer: Any) -> dict[str, Any]:
    return {
        "qkv": [layer.to_q, layer.to_k, layer.to_v],
        "out": layer.to_out,
        "rows": layer.fast_attention.projection_matrix,
    }


def _performer(generalized: bool) -> Contender:
    def attention(sizes: Sizes) -> nn.Module:
        return imported("performer_pytorch").SelfAttention(
            sizes.dim,
            heads=sizes.heads,
            dim_head=sizes.head_dim,
            nb_features=sizes.m,
            generalized_attention=generalized,
        )

    return _plain(attention)


def _vit_module() -> ModuleType:
    """vit-pytorch's module of the plain ViT by its file: the package itself imports torchvision, which need not be
    there.
    """
    package = importlib.util.find_spec("vit_pytorch")
    places = package.submodule_search_locations if package is not None else None
    if not places:
        raise FavoritError("vit-pytorch is not installed")
    spec = importlib.util.spec_from_file_location("vit_pytorch_vit", Path(places[0]) / "vit.py")
    if spec is None or spec.loader is None:
        raise FavoritError(f"vit-pytorch: there is no module vit in {places[0]}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _vit_pytorch(sizes: Sizes) -> nn.Module:
    model = _vit_module().ViT(
        image_size=SIDE, patch_size=PATCH, num_classes=CLASSES, dim=sizes.dim, depth=sizes.depth, heads=sizes.heads,
        mlp_dim=4 * sizes.dim, dim_head=sizes.head_dim,
    )  # fmt: skip
    # Its norms before and after the patch projection, which ours has not: without them both are the same function.
    model.to_patch_embedding[1] = model.to_patch_embedding[3] = nn.Identity()
    return model


def _adopt_vit_pytorch(ours: ViT, theirs: Any) -> None:
    projection = theirs.to_patch_embedding[2]
    weight = projection.weight.unflatten(1, (PATCH, PATCH, 3)).permute(0, 3, 1, 2)
    layers = [
        LayerParts(attention.norm, [attention.to_qkv], attention.to_out[0], mlp.net[0], (mlp.net[1], mlp.net[4]))
        for attention, mlp in theirs.transformer.layers
    ]
    parts = Parts(
        (weight, projection.bias),
        theirs.cls_token,
        theirs.pos_embedding,
        layers,
        theirs.transformer.norm,
        theirs.mlp_head,
    )
    adopt_parts(ours, parts)


class _Logits(nn.Module):
    """A transformers model as a function to logits."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        library = imported("transformers")
        config = library.ViTConfig(
            hidden_size=sizes.dim, num_hidden_layers=sizes.depth, num_attention_heads=sizes.heads, intermediate_size=4 * sizes.dim,
            image_size=SIDE, patch_size=PATCH, num_labels=CLASSES, attn_implementation="sdpa",
            layer_norm_eps=1e-5,  # torch's, which ours keeps
        )  # fmt: skip
        self.model = library.ViTForImageClassification(config)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixels).logits


def _adopt_transformers(ours: ViT, theirs: Any) -> None:
    vit = theirs.model.vit
    layers = []
    for layer in vit.layers:
        attention = layer.attention
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        mlp = (layer.mlp.fc1, layer.mlp.fc2)
        layers.append(LayerParts(layer.layernorm_before, projections, attention.o_proj, layer.layernorm_after, mlp))
    patches, tokens = vit.embeddings.patch_embeddings.projection, vit.embeddings
    parts = Parts(
        (patches.weight, patches.bias),
        tokens.cls_token,
        tokens.position_embeddings,
        layers,
        vit.layernorm,
        theirs.model.classifier,
    )
    adopt_parts(ours, parts)


_FUSED = _plain(lambda sizes: Packed(sizes.dim, sizes.heads, Fused()))

STEP = [
    Comparison(
        case="step",
        name="softmax",
        peer="plain ViT, SDPA",
        ours=_ours("softmax"),
        theirs=_FUSED,
        inputs=images,
        adopt=lambda ours, theirs: adopt_parts(ours, plain_parts(theirs, packed_attention)),
    ),
    Comparison(
        case="step",
        name="softmax",
        peer="vit-pytorch",
        package="vit_pytorch",
        ours=_ours("softmax", qkv_bias=False),
        theirs=Contender(_vit_pytorch, work_of_step(images, plain_adamw)),
        inputs=images,
        adopt=_adopt_vit_pytorch,
    ),
    Comparison(
        case="step",
        name="softmax",
        peer="transformers, SDPA",
        package="transformers",
        ours=_ours("softmax"),
        theirs=Contender(_Logits, work_of_step(images, plain_adamw)),
        inputs=images,
        adopt=_adopt_transformers,
    ),
    *(
        Comparison(
            case="step",
            name=name,
            peer=PERFORMER,
            package="performer_pytorch",
            ours=_ours(name, qkv_bias=False),
            theirs=_performer(generalized),
            inputs=images,
            adopt=lambda ours, theirs: adopt_parts(ours, plain_parts(theirs, _three_projections)),
            exactly=without_eps,
        )
        for name, generalized in PERFORMERS.items()
    ),
    # What linear attention costs or saves: its mathematics is another.
    *(
        Comparison(
            case="step", name=name, peer="plain ViT, SDPA", ours=_ours(name), theirs=_FUSED, inputs=images, adopt=None
        )
        for name in PERFORMERS
    ),
]
