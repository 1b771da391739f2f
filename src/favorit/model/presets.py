"""Presets: every model of the five reproduced reports, as data.

Sizes are for CIFAR-10 unless the name says otherwise; `image_size=28, channels=1` turns any preset into an MNIST model.
Values come from the tables of each report. Where a report leaves a value open, a comment states our choice.
"""

from __future__ import annotations

import warnings
from typing import Any

from favorit.config import ModelConfig
from favorit.errors import unknown

MNIST: dict[str, Any] = dict(image_size=28, channels=1)

# 1. Ding, Wang, Yang, Qin, Hao, "Problem 1: Vision Transformers". The parameter counts show that its ViTs have heads of
# width 64 at every dim. The report gives only dim, depth and heads for its Performers, so their head width is
# dim / heads. It describes learned and sine-cosine positions and used the latter. performer-relu-local follows its
# section 6, which proposes local and global mixing: Performer-ReLU with a depthwise convolution parallel to attention.
_VARIANT: dict[str, Any] = dict(dim=128, depth=6, heads=8, mlp_dim=512, dropout=0.1, emb_dropout=0.1)
_SINCOS_MEAN: dict[str, Any] = dict(position="sincos2d", head="mean")
_SMALL: dict[str, Any] = dict(dim=64, depth=4, heads=4, mlp_dim=128, layout="all_performer", **_SINCOS_MEAN)

# 2. Clepper et al., "Optimizing Image Classification on CIFAR-10 with Transformer Architectures": kernels behind a
# convolutional backbone. Blocks have no feed-forward network. The backbone uses the kernel's activation. `exp` is not
# an activation of the stem, so its backbone uses ReLU. We take the report's "orthogonal initialization" to be
# torch.nn.init.orthogonal_, so rows=orthonormal. ReLU(Wx + b) has a random b and usually 256 features. The mixture
# extends another ReLU run of the report, with dim=768 and depth=1; f_theta has its own table of sizes. The report's ViT
# is post-norm with a ReLU feed-forward network.
_FEATURES = "rows=orthonormal, eps=1e-6, scale=sqrt"
_KERNEL: dict[str, Any] = dict(mlp_dim=0, layout="all_performer", position="none", head="mean", norm="double")


def _backbone(
    kernel: str, act: str, dropout: float = 0.0, norm: str = "double", **sizes: Any
) -> dict[str, dict[str, Any]]:
    """Two presets for one kernel: the published model, whose backbone gives a single token, and a variant that uses the
    16x16 feature map of this backbone as tokens.
    """
    name = kernel.partition("(")[0]
    base = {**_KERNEL, **sizes, "performer": kernel, "dropout": dropout, "norm": norm}
    return {
        f"conv-{name}": {**base, "stem": f"conv(act={act}, tokens=1, dropout={dropout})"},
        f"conv-{name}-grid": {**base, "stem": f"conv(act={act})", "position": "learned"},
    }


# 4. Sun, Shah, "Testing linear-attention Transformers": two frameworks, two sizes. The report mentions no class token,
# so the head uses the mean of the tokens. It also describes the Linformer as attention in local windows; ours has only
# the low-rank projection. It gives no sizes for the ResNet stem of its Performer; ours has two stages of one block.
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
    # Report 1: `vit` from its table of sizes. Recipe (a) trains simple-vit, vit-128 and performer-*, recipe (b)
    # performer-*-small.
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
    # Tokens at pixel level: 1024 pixels, or 3072 channel values. The channels of a pixel share its position. The sizes
    # are ours.
    "pixels": dict(stem="patch(1)", head="mean", layout="all_performer", performer="relu(m=64)"),
    "channel-values": dict(stem="values", position="none", head="mean", layout="all_performer", performer="relu(m=64)"),
    # Report 3: Bennouna, Yang, Shao, Souaid, "Hybrid Transformer Models with Performer and Regular Attention". A small
    # ViT of dim 64 (142,026 parameters) with softmax in all layers. The report's hybrids set `layout` and `performer`.
    "vit-64": dict(),
    "vit-64-mnist": dict(**MNIST),
    "vit-192-imagenet": dict(image_size=224, classes=1000, stem="patch(8)", dim=192, depth=8, heads=3, mlp_dim=768),
    # Report 4: the Transformer and the Linformer, then the Performer as summarized (one block) and as trained.
    "linear-transformer": dict(**_LINEAR, image_size=72, stem="patch(6)", depth=8),
    "linear-transformer-mnist": dict(**_LINEAR, **MNIST, stem="patch(7)", depth=6),
    "linformer": dict(**_LINEAR, image_size=72, stem="patch(6)", depth=8, layout="linformer(k=32)"),
    # MNIST has 16 tokens here: a projection to 32 rows would be longer than the sequence.
    "linformer-mnist": dict(**_LINEAR, **MNIST, stem="patch(7)", depth=6, layout="linformer(k=8)"),
    "linear-performer-summary": dict(**_KERAS, depth=1, performer="favor(m=16, features=hyperbolic)"),
    "linear-performer": dict(**_KERAS, depth=8, performer="favor(m=16, features=hyperbolic)", dropout=0.1),
    "linear-performer-resnet": dict(
        **{**_KERAS, "stem": "resnet"}, depth=8, performer="favor(m=16, features=hyperbolic)", dropout=0.1
    ),
    "linear-performer-mnist": dict(
        **_KERAS, **MNIST, depth=4, performer="favor(m=16, features=hyperbolic)", dropout=0.1
    ),
    # Report 5: every mixer with every relative position.
    **{
        f"position-{mixer}-{relative}": dict(**_POSITIONS, layout=layout, position=position)
        for mixer, layout in _MIXERS.items()
        for relative, position in _RELATIVE.items()
    },
}

# First preset of each report -> its authors and title. The presets of a report end before the first preset of the next.
REPORTS = {
    "vit": 'Ding, Wang, Yang, Qin, Hao, "Problem 1: Vision Transformers"',
    "kernel-vit": "Clepper et al., "
    '"Optimizing Image Classification on CIFAR-10 with Transformer Architectures", Columbia, Fall 2024',
    "vit-64": "Bennouna, Yang, Shao, Souaid, "
    '"Hybrid Transformer Models with Performer and Regular Attention", December 2025',
    "linear-transformer": 'Sun, Shah, "Testing linear-attention Transformers"',
    "position-softmax-none": 'Guoji, "Improving efficient Vision Transformers with RPEs"',
}

# Former name -> current name. Former names still work, but give a warning.
RENAMED = {"hybrid": "vit-64", "hybrid-mnist": "vit-64-mnist", "hybrid-imagenet": "vit-192-imagenet"}


def current_name(name: str) -> str:
    """The key of a preset in PRESETS. A former name gives a warning, an unknown name an error."""
    if name in RENAMED:
        warnings.warn(
            f"preset {name!r} is now {RENAMED[name]!r}: all its layers are softmax unless you set layout", stacklevel=3
        )
        return RENAMED[name]
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return name


def preset(name: str) -> ModelConfig:
    """The configuration of a preset."""
    return ModelConfig(**PRESETS[current_name(name)])
