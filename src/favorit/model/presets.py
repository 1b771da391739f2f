"""Presets: every model of the five reproduced systems, as data.

Sizes are for CIFAR-10 unless a name says otherwise; `image_size=28, channels=1` makes any of them an MNIST model. What
a report leaves open is decided here and said in a comment. Numbers of a section are those of the report's own tables.
"""

from __future__ import annotations

from typing import Any

from favorit.config import ModelConfig
from favorit.errors import unknown

MNIST: dict[str, Any] = dict(image_size=28, channels=1)

# 1. Ding, Wang, Yang, Qin, Hao, "Problem 1: Vision Transformers". The heads of its ViTs are 64 wide whatever the dim:
# its parameter counts say so. Its Performers are given by dim, depth and heads only, so dim / heads; of learned and
# sine-cosine positions its text says that the latter were used. Local and global mixing is what its section 6 proposes:
# a depthwise convolution beside the attention of its Performer-ReLU.
_VARIANT: dict[str, Any] = dict(dim=128, depth=6, heads=8, mlp_dim=512, dropout=0.1, emb_dropout=0.1)
_SINCOS_MEAN: dict[str, Any] = dict(position="sincos2d", head="mean")
_SMALL: dict[str, Any] = dict(dim=64, depth=4, heads=4, mlp_dim=128, layout="all_performer", **_SINCOS_MEAN)

# 2. Clepper et al., "Optimizing Image Classification on CIFAR-10 with Transformer Architectures": kernels behind a
# convolutional backbone. Layers without feed-forward network; the activation of the kernel is the backbone's too. `exp`
# has no such activation: ReLU. Its projections are "orthogonal initialisation": rows as torch.nn.init.orthogonal_ draws
# them. ReLU(Wx + b) has a random b and commonly 256 features. The mixture has the sizes of the prior ReLU run that it
# builds on, f_theta those of its own table. Its ViT is post-norm with a ReLU feed-forward network.
_FEATURES = "rows=orthonormal, eps=1e-6, scale=sqrt"
_KERNEL: dict[str, Any] = dict(mlp_dim=0, layout="all_performer", position="none", head="mean", norm="double")


def _backbone(
    kernel: str, act: str, dropout: float = 0.0, norm: str = "double", **sizes: Any
) -> dict[str, dict[str, Any]]:
    """Both token forms of one kernel: the published single token, and the same backbone with its 16x16 grid kept as
    tokens.
    """
    name = kernel.partition("(")[0]
    base = {**_KERNEL, **sizes, "performer": kernel, "dropout": dropout, "norm": norm}
    return {
        f"conv-{name}": {**base, "stem": f"conv(act={act}, tokens=1, dropout={dropout})"},
        f"conv-{name}-grid": {**base, "stem": f"conv(act={act})", "position": "learned"},
    }


# 4. Sun, Shah, "Testing linear-attention Transformers": two frameworks, two sizes. No class token is mentioned; the
# mean of the tokens is what we read. It describes the Linformer as attention in local windows too; ours is the low-rank
# projection alone. Its ResNet stem before a Performer has no sizes: two stages of one block.
_LINEAR: dict[str, Any] = dict(dim=256, heads=8, mlp_dim=768, dropout=0.2, head="mean")
_KERAS: dict[str, Any] = dict(
    stem="patch(6, crop=True)",
    dim=64,
    heads=4,
    head_dim=128,
    mlp_dim=128,
    layout="all_performer",
    head="mlp(2048, 1024)",
)

# 5. Guoji, "Improving efficient Vision Transformers with RPEs": relative positions on top of learned absolute ones.
_POSITIONS: dict[str, Any] = dict(dim=256, depth=6, heads=8, mlp_dim=512, dropout=0.2)
_MIXERS = {"softmax": "softmax", "favor": "favor(m=128)", "relu": "relu(m=128, learned=True)"}
_RELATIVE = {
    "none": "learned",
    "rope2d": "learned+rope2d",
    "irpe": "learned+irpe_gate",
    "string": "learned+string_gate",
}

PRESETS: dict[str, dict[str, Any]] = {
    # Report 1. The tables of model sizes, then the trained recipes (a) and (b).
    "vit": dict(dim=96, depth=4, heads=6, head_dim=64, mlp_dim=512, qkv_bias=False),
    "simple-vit": dict(
        dim=128, depth=6, heads=8, head_dim=64, mlp_dim=512, qkv_bias=False, out_bias=False, **_SINCOS_MEAN
    ),
    "vit-128": dict(**_VARIANT, head_dim=64, qkv_bias=False),
    "performer-relu": dict(**_VARIANT, **_SINCOS_MEAN, layout="all_performer", performer="relu"),
    "performer-relu-local": dict(
        **_VARIANT, **_SINCOS_MEAN, layout="all_performer", performer="relu", local="dwconv(3)"
    ),
    "performer-exp": dict(**_VARIANT, **_SINCOS_MEAN, layout="all_performer", performer="favor(m=256)"),
    "performer-ftheta": dict(**_VARIANT, **_SINCOS_MEAN, layout="all_performer", performer="learned(act=gelu)"),
    "performer-relu-small": dict(**_SMALL, performer="relu"),
    "performer-exp-small": dict(**_SMALL, performer="favor(m=256)"),
    "performer-ftheta-small": dict(**_SMALL, performer="learned(m=256, act=gelu)"),
    # Report 2.
    "kernel-vit": dict(dim=256, depth=8, heads=8, mlp_dim=512, dropout=0.1, norm="post", act="relu"),
    **_backbone(f"relu(m=256, bias=True, {_FEATURES})", "relu", dropout=0.1, dim=960, depth=4, heads=16),
    **_backbone(f"elu(m=256, alpha=0.25, {_FEATURES})", "elu", dim=768, depth=1, heads=8),
    **_backbone(f"gelu(m=128, {_FEATURES})", "gelu", dim=768, depth=1, heads=16),
    **_backbone(f"exp(m=128, {_FEATURES})", "relu", dropout=0.1, norm="double_inner", dim=576, depth=3, heads=16),
    **_backbone("mixture(eps=1e-6)", "relu", dim=768, depth=1, heads=16),
    **_backbone("learned(m=512, scale=sqrt)", "relu", dropout=0.5, dim=768, depth=5, heads=16),
    # Tokens at pixel level: 1024 pixels, or 3072 channel values that share the positions of their pixels. The sizes are
    # ours.
    "pixels": dict(stem="patch(1)", head="mean", layout="all_performer", performer="relu(m=64)"),
    "channel-values": dict(stem="values", position="none", head="mean", layout="all_performer", performer="relu(m=64)"),
    # Report 3: Bennouna, Yang, Shao, Souaid, "Hybrid Transformer Models with Performer and Regular Attention". The
    # layout and `performer` are what its study varies.
    "hybrid": dict(),
    "hybrid-mnist": dict(**MNIST),
    "hybrid-imagenet": dict(image_size=224, classes=1000, stem="patch(8)", dim=192, depth=8, heads=3, mlp_dim=768),
    # Report 4. The Transformer and Linformer, then the Performer: of its summary (one block), and as trained.
    "linear-transformer": dict(**_LINEAR, image_size=72, stem="patch(6)", depth=8),
    "linear-transformer-mnist": dict(**_LINEAR, **MNIST, stem="patch(7)", depth=6),
    "linformer": dict(**_LINEAR, image_size=72, stem="patch(6)", depth=8, layout="linformer(k=32)"),
    # 16 tokens on MNIST: a projection to 32 rows would be longer than the sequence.
    "linformer-mnist": dict(**_LINEAR, **MNIST, stem="patch(7)", depth=6, layout="linformer(k=8)"),
    "linear-performer-summary": dict(**_KERAS, depth=1, performer="favor(m=16, features=hyperbolic)"),
    "linear-performer": dict(**_KERAS, depth=8, performer="favor(m=16, features=hyperbolic)", dropout=0.1),
    "linear-performer-resnet": dict(
        **{**_KERAS, "stem": "resnet"}, depth=8, performer="favor(m=16, features=hyperbolic)", dropout=0.1
    ),
    "linear-performer-mnist": dict(
        **_KERAS, **MNIST, depth=4, performer="favor(m=16, features=hyperbolic)", dropout=0.1
    ),
    # Report 5. Every mixer with every relative position.
    **{
        f"position-{mixer}-{relative}": dict(**_POSITIONS, layout=layout, position=position)
        for mixer, layout in _MIXERS.items()
        for relative, position in _RELATIVE.items()
    },
}


def preset(name: str) -> ModelConfig:
    """The configuration of a preset."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return ModelConfig(**PRESETS[name])
