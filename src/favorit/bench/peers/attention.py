"""Comparisons of attention layers: ours with torch, performer-pytorch and linformer, forward and backward.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from favorit.attention import Attention, Linear, build_mixer
from favorit.bench.peers.comparison import Comparison, Implementation, Sizes, attention_call
from favorit.bench.peers.plain_vit import Fused
from favorit.bench.speed import Size, make_inputs

PERFORMER = "performer-pytorch"
# our kernel -> the value of performer-pytorch's `generalized_attention`
PERFORMERS = {"relu(m={m})": True, "favor(m={m})": False}
LINFORMER_ROWS = 32


def import_peer(package: str) -> ModuleType:
    """Imports a peer's package. Warnings of the import are silenced, because they concern code that is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(package)


@contextmanager
def without_eps() -> Iterator[None]:
    """Sets the 1e-4 that performer-pytorch adds to each softmax feature to 0; its layers have no argument for it."""
    defaults = import_peer("performer_pytorch.performer_pytorch").softmax_kernel.__kwdefaults__
    eps = defaults["eps"]
    defaults["eps"] = 0.0
    try:
        yield
    finally:
        defaults["eps"] = eps


def fast_attention(head_dim: int, m: int, generalized: bool) -> Any:
    """performer-pytorch's attention function; its kernel is relu if `generalized`, otherwise an estimate of softmax."""
    return import_peer("performer_pytorch").FastAttention(head_dim, nb_features=m, generalized_attention=generalized)


def _qkv(sizes: Sizes) -> tuple[Tensor, ...]:
    return tuple(x.detach() for x in make_inputs(Size(sizes.batch, sizes.heads, sizes.tokens, sizes.head_dim))[:3])


def _tokens(sizes: Sizes) -> tuple[Tensor, ...]:
    return (torch.randn(sizes.batch, sizes.tokens, sizes.dim),)


def _mixer(name: str) -> Implementation:
    def build(sizes: Sizes) -> nn.Module:
        return build_mixer(
            name.format(m=sizes.m), heads=sizes.heads, head_dim=sizes.head_dim, tokens=sizes.tokens, seed=0
        )

    return Implementation(build, attention_call(_qkv))


def _performer(generalized: bool, sizes: Sizes) -> nn.Module:
    return fast_attention(sizes.head_dim, sizes.m, generalized)


def _copy_rows(ours: Linear, theirs: Any) -> None:
    """Copies the random rows. Theirs are biased (QR without the signs of diag(R)), but cost the same."""
    ours.load_state_dict({"kernel.projection.rows": theirs.projection_matrix})


class _LinformerLayer(nn.Module):
    """Our linformer layer on a one-dimensional grid, without a class token."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.grid = (sizes.tokens,)
        mixer = f"linformer(k={_num_rows(sizes)}, share=heads)"
        self.attention = Attention(sizes.dim, sizes.heads, mixer, qkv_bias=False, grid=self.grid, seed=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, self.grid)


def _num_rows(sizes: Sizes) -> int:
    return min(LINFORMER_ROWS, sizes.tokens)


def _linformer(sizes: Sizes) -> nn.Module:
    return import_peer("linformer").LinformerSelfAttention(
        sizes.dim, sizes.tokens, k=_num_rows(sizes), heads=sizes.heads
    )


def _copy_linformer(ours: _LinformerLayer, theirs: Any) -> None:
    ours.attention.load_state_dict(
        {
            "qkv.weight": torch.cat([theirs.to_q.weight, theirs.to_k.weight, theirs.to_v.weight]),
            "out.weight": theirs.to_out.weight,
            "out.bias": theirs.to_out.bias,
            "mixer.key_projection": theirs.proj_k.mT[None],
            "mixer.value_projection": theirs.proj_v.mT[None],
        }
    )


ATTENTION_COMPARISONS = [
    Comparison(
        case="attention",
        name="softmax",
        peer="torch SDPA",
        ours=_mixer("softmax"),
        theirs=Implementation(lambda sizes: Fused(), attention_call(_qkv)),
        inputs=_qkv,
        copy_weights=lambda ours, theirs: None,
    ),
    *(
        Comparison(
            case="attention",
            name=name,
            peer=PERFORMER,
            package="performer_pytorch",
            ours=_mixer(name),
            theirs=Implementation(partial(_performer, generalized), attention_call(_qkv)),
            inputs=_qkv,
            copy_weights=_copy_rows,
            without_extras=without_eps,
        )
        for name, generalized in PERFORMERS.items()
    ),
    Comparison(
        case="attention",
        name=f"linformer(k={LINFORMER_ROWS}), layer",
        peer="linformer",
        package="linformer",
        ours=Implementation(_LinformerLayer, attention_call(_tokens)),
        theirs=Implementation(_linformer, attention_call(_tokens)),
        inputs=_tokens,
        copy_weights=_copy_linformer,
    ),
]
