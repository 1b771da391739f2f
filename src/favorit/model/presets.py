"""Presets: every model of the five reproduced systems, as data.

Sizes are for CIFAR-10 unless a name says otherwise; `image_size=28, channels=1` makes any of them an MNIST model. What a report leaves open
is decided here and said in a comment. Numbers of a section are those of the report's own tables.
"""

from __future__ import annotations

from typing import Any

from favorit.config import ModelConfig
from favorit.errors import unknown

MNIST: dict[str, Any] = dict(image_size=28, channels=1)

# 1. ViT variants. The heads of its ViTs are 64 wide whatever the dim: its parameter counts say so. Its Performers are given by dim, depth
#    and heads only, so dim / heads; of learned and sine-cosine positions its text says that the latter were used.
_VARIANT: dict[str, Any] = dict(dim=128, depth=6, heads=8, mlp_dim=512, dropout=0.1, emb_dropout=0.1)
_SINCOS_MEAN: dict[str, Any] = dict(position="sincos2d", head="mean")
_SMALL: dict[str, Any] = dict(dim=64, depth=4, heads=4, mlp_dim=128, layout="all_performer", **_SINCOS_MEAN)

# 2. Kernels behind a convolutional backbone. Layers without feed-forward network; the activation of the kernel is the backbone's too. `exp`
#    has no such activation: ReLU. The learned kernels give no sizes of their own: those of the report's f_theta table.
_KERNEL: dict[str, Any] = dict(mlp_dim=0, layout="all_performer", position="none", head="mean", norm="double")


def _backbone(kernel: str, act: str, dropout: float = 0.0, norm: str = "double", **sizes: Any) -> dict[str, dict[str, Any]]:
    """Both token forms of one kernel: the published single token, and the same backbone with its 16x16 grid kept as tokens."""
    name = kernel.partition("(")[0]
    base = {**_KERNEL, **sizes, "performer": kernel, "dropout": dropout, "norm": norm}
    return {
        f"conv-{name}": {**base, "stem": f"conv(act={act}, tokens=1, dropout={dropout})"},
        f"conv-{name}-grid": {**base, "stem": f"conv(act={act})", "position": "learned"},
    }


# 4. Linear-attention Transformers: two frameworks, two sizes. No class token is mentioned; the mean of the tokens is what we read.
_LINEAR: dict[str, Any] = dict(dim=256, heads=8, mlp_dim=768, dropout=0.2, head="mean")
_KERAS: dict[str, Any] = dict(
    stem="patch(6, crop=True)", dim=64, heads=4, head_dim=128, mlp_dim=128, layout="all_performer", head="mlp(2048, 1024)"
)

# 5. Relative positions on top of learned absolute ones.
_POSITIONS: dict[str, Any] = dict(dim=256, depth=6, heads=8, mlp_dim=512, dropout=0.2)
_MIXERS = {"softmax": "softmax", "favor": "favor(m=128)", "relu": "relu(m=128, learned=True)"}
_RELATIVE = {"none": "learned", "rope2d": "learned+rope2d", "irpe": "learned+irpe_gate", "string": "learned+string_gate"}

PRESETS: dict[str, dict[str, Any]] = {
    # Section 1. The tables of model sizes, then the trained recipes (a) and (b).
    "vit": dict(dim=96, depth=4, heads=6, head_dim=64, mlp_dim=512, qkv_bias=False),
    "simple-vit": dict(dim=128, depth=6, heads=8, head_dim=64, mlp_dim=512, qkv_bias=False, out_bias=False, **_SINCOS_MEAN),
    "vit-128": dict(**_VARIANT, head_dim=64, qkv_bias=False),
    "performer-relu": dict(**_VARIANT, **_SINCOS_MEAN, layout="all_performer", performer="relu"),
    "performer-exp": dict(**_VARIANT, **_SINCOS_MEAN, layout="all_performer", performer="favor(m=256)"),
    "performer-ftheta": dict(**_VARIANT, **_SINCOS_MEAN, layout="all_performer", performer="learned(act=gelu)"),
    "performer-relu-small": dict(**_SMALL, performer="relu"),
    "performer-exp-small": dict(**_SMALL, performer="favor(m=256)"),
    "performer-ftheta-small": dict(**_SMALL, performer="learned(m=256, act=gelu)"),
    # Section 2.
    "kernel-vit": dict(dim=256, depth=8, heads=8, mlp_dim=512, dropout=0.1),
    **_backbone("relu(m=128, eps=1e-6, scale=sqrt)", "relu", dropout=0.1, dim=960, depth=4, heads=16),
    **_backbone("elu(m=256, alpha=0.25, eps=1e-6, scale=sqrt)", "elu", dim=768, depth=1, heads=8),
    **_backbone("gelu(m=128, eps=1e-6, scale=sqrt)", "gelu", dim=768, depth=1, heads=16),
    **_backbone("exp(m=128, eps=1e-6, scale=sqrt)", "relu", dropout=0.1, norm="double_inner", dim=576, depth=3, heads=16),
    **_backbone("mixture", "relu", dropout=0.1, dim=768, depth=5, heads=16),
    **_backbone("learned(m=512)", "relu", dropout=0.5, dim=768, depth=5, heads=16),
    # Tokens at pixel level: 1024 pixels, or 3072 channel values that share the positions of their pixels. The sizes are ours.
    "pixels": dict(stem="patch(1)", head="mean", layout="all_performer", performer="relu(m=64)"),
    "channel-values": dict(stem="values", position="none", head="mean", layout="all_performer", performer="relu(m=64)"),
    # Section 3. The layout and `performer` are what its study varies.
    "hybrid": dict(),
    "hybrid-mnist": dict(**MNIST),
    "hybrid-imagenet": dict(image_size=224, classes=1000, stem="patch(8)", dim=192, depth=8, heads=3, mlp_dim=768),
    # Section 4. The Transformer and Linformer, then the Performer: of its summary (one block), and as trained.
    "linear-transformer": dict(**_LINEAR, image_size=72, stem="patch(6)", depth=8),
    "linear-transformer-mnist": dict(**_LINEAR, **MNIST, stem="patch(7)", depth=6),
    "linformer": dict(**_LINEAR, image_size=72, stem="patch(6)", depth=8, layout="linformer(k=32)"),
    # 16 tokens on MNIST: a projection to 32 rows would be longer than the sequence.
    "linformer-mnist": dict(**_LINEAR, **MNIST, stem="patch(7)", depth=6, layout="linformer(k=8)"),
    "linear-performer-summary": dict(**_KERAS, depth=1, performer="favor(m=16, features=hyperbolic)"),
    "linear-performer": dict(**_KERAS, depth=8, performer="favor(m=16, features=hyperbolic)", dropout=0.1),
    "linear-performer-mnist": dict(**_KERAS, **MNIST, depth=4, performer="favor(m=16, features=hyperbolic)", dropout=0.1),
    # Section 5. Every mixer with every relative position.
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
