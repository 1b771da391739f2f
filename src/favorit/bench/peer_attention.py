"""Attention alone, ours against performer-pytorch, linformer and torch: forward and backward.

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
from favorit.bench.comparison import Comparison, Contender, Sizes, work_of_attention
from favorit.bench.plain import Fused
from favorit.bench.speed import Size, make_inputs

PERFORMER = "performer-pytorch"
# Our kernels, and whether they are what performer-pytorch calls generalized.
PERFORMERS = {"relu(m={m})": True, "favor(m={m})": False}
PROJECTED = 32


def imported(package: str) -> ModuleType:
    """A peer's package; what it warns of while it is imported is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(package)


@contextmanager
def without_eps() -> Iterator[None]:
    """performer-pytorch adds 1e-4 to each feature of its softmax kernel, which no argument of its layers reaches."""
    defaults = imported("performer_pytorch.performer_pytorch").softmax_kernel.__kwdefaults__
    usual = defaults["eps"]
    defaults["eps"] = 0.0
    try:
        yield
    finally:
        defaults["eps"] = usual


def fast_attention(head_dim: int, m: int, generalized: bool) -> Any:
    """performer-pytorch's function of (q, k, v); `generalized` is its relu, else it estimates softmax."""
    return imported("performer_pytorch").FastAttention(head_dim, nb_features=m, generalized_attention=generalized)


def _qkv(sizes: Sizes) -> tuple[Tensor, ...]:
    return tuple(x.detach() for x in make_inputs(Size(sizes.batch, sizes.heads, sizes.tokens, sizes.head_dim))[:3])


def _tokens(sizes: Sizes) -> tuple[Tensor, ...]:
    return (torch.randn(sizes.batch, sizes.tokens, sizes.dim),)


def _mixer(name: str) -> Contender:
    def build(sizes: Sizes) -> nn.Module:
        return build_mixer(
            name.format(m=sizes.m), heads=sizes.heads, head_dim=sizes.head_dim, tokens=sizes.tokens, seed=0
        )

    return Contender(build, work_of_attention(_qkv))


def _performer(generalized: bool, sizes: Sizes) -> nn.Module:
    return fast_attention(sizes.head_dim, sizes.m, generalized)


def _adopt_rows(ours: Linear, theirs: Any) -> None:
    """The same random rows: theirs come from a QR without signs, which is biased, and costs the same."""
    ours.load_state_dict({"kernel.projection.rows": theirs.projection_matrix})


class _Layer(nn.Module):
    """Our linformer as a layer of tokens in a row, without prefix."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.grid = (sizes.tokens,)
        mixer = f"linformer(k={_projected(sizes)}, share=heads)"
        self.attention = Attention(sizes.dim, sizes.heads, mixer, qkv_bias=False, grid=self.grid, seed=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, self.grid)


def _projected(sizes: Sizes) -> int:
    return min(PROJECTED, sizes.tokens)


def _linformer(sizes: Sizes) -> nn.Module:
    return imported("linformer").LinformerSelfAttention(sizes.dim, sizes.tokens, k=_projected(sizes), heads=sizes.heads)


def _adopt_linformer(ours: _Layer, theirs: Any) -> None:
    ours.attention.load_state_dict(
        {
            "qkv.weight": torch.cat([theirs.to_q.weight, theirs.to_k.weight, theirs.to_v.weight]),
            "out.weight": theirs.to_out.weight,
            "out.bias": theirs.to_out.bias,
            "mixer.key_projection": theirs.proj_k.mT[None],
            "mixer.value_projection": theirs.proj_v.mT[None],
        }
    )


ATTENTION = [
    Comparison(
        case="attention",
        name="softmax",
        peer="torch SDPA",
        ours=_mixer("softmax"),
        theirs=Contender(lambda sizes: Fused(), work_of_attention(_qkv)),
        inputs=_qkv,
        adopt=lambda ours, theirs: None,
    ),
    *(
        Comparison(
            case="attention",
            name=name,
            peer=PERFORMER,
            package="performer_pytorch",
            ours=_mixer(name),
            theirs=Contender(partial(_performer, generalized), work_of_attention(_qkv)),
            inputs=_qkv,
            adopt=_adopt_rows,
            exactly=without_eps,
        )
        for name, generalized in PERFORMERS.items()
    ),
    Comparison(
        case="attention",
        name=f"linformer(k={PROJECTED}), layer",
        peer="linformer",
        package="linformer",
        ours=Contender(_Layer, work_of_attention(_tokens)),
        theirs=Contender(_linformer, work_of_attention(_tokens)),
        inputs=_tokens,
        adopt=_adopt_linformer,
    ),
]
