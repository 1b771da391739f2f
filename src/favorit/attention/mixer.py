"""Mixers: how tokens exchange information.

Shapes: B batch, H heads, N tokens (Nq queries, Nk keys), D head width, C model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit import seeds
from favorit.allocation import within_memory
from favorit.attention.cpu.limits import Limits
from favorit.errors import check_positive
from favorit.grids import Grid
from favorit.spec import Registry, Spec
from favorit.tensors import check_attention_inputs


class UnprojectedTokens(NamedTuple):
    """Tokens x (B,N,C) and the projections to their keys and values: k_j = W_k x_j + b_k and v_j = W_v x_j + b_v.

    For few queries, a mixer may skip the projection of all keys or all values (`Mixer.read`).
    """

    x: Tensor
    weight: Tensor  # (2,H,D,C): W_k and W_v
    bias: Tensor | None  # (2,H,D)

    def keys(self) -> Tensor:
        """(B,H,N,D)."""
        bias = None if self.bias is None else self.bias[0].flatten()
        keys = F.linear(self.x, self.weight[0].flatten(0, 1), bias)
        return keys.unflatten(-1, self.weight.shape[1:3]).transpose(1, 2)

    def values(self, mixed: Tensor) -> Tensor:
        """W_v sum_j w_ij x_j + b_v = sum_j w_ij v_j, for weights that sum to one: (B,H,Nq,C) -> (B,H,Nq,D)."""
        values = torch.einsum("bhic,hdc->bhid", mixed, self.weight[1])
        return values if self.bias is None else values + self.bias[1].unsqueeze(1).to(values.dtype)

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Keys and values, (B,H,N,D) each, from one matrix product."""
        bias = None if self.bias is None else self.bias.flatten()
        both = F.linear(self.x, self.weight.flatten(0, 2), bias)
        k, v = both.unflatten(-1, self.weight.shape[:3]).unbind(2)
        return k.transpose(1, 2), v.transpose(1, 2)


class Mixer(nn.Module, ABC):
    """out_i = sum_j w_ij v_j. The weights w_i depend on query i and the keys, not on other queries.

    With `causal`, query i sees only the keys 0..i, also if Nq != Nk. `limits` holds the sizes at which the CPU switches
    between implementations; set it on a mixer to force one. A call checks the shapes of its tensors; `heads` and
    `head_dim` are those that `build_mixer` was given.
    """

    causal: bool = False
    limits: Limits = Limits()
    heads: int | None = None
    head_dim: int | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        check_attention_inputs(q, k, v, key_mask, self.heads, self.head_dim)
        return super().__call__(q, k, v, key_mask=key_mask)

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D) -> (B,H,Nq,D). `key_mask` (B,Nk) is true for keys to keep.

        A query without keys gets zeros: if Nk = 0, if all keys are masked, or if a causal query sees only masked keys.
        Masked keys and their values may be anything, also NaN or infinite (uninitialized padding): they change no
        output, and their gradients are zero. An implementation replaces them by zeros first (`keep`). Multiplying their
        weights by zero is not enough: 0 * NaN = NaN, in forward or in backward.

        Outputs and gradients are finite in fp32 for norms of q and k up to 1e15 and of v up to 100.
        """

    @abstractmethod
    def weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """The explicit (B,H,Nq,Nk) matrix in fp32 or fp64: weights @ v == forward. O(Nq Nk): for figures and tests."""

    def explain(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> str:
        """The implementation that `forward` uses for these tensors, and the reason. Most mixers have only one."""
        return "direct form: the only implementation"

    def read(self, q: Tensor, tokens: UnprojectedTokens) -> Tensor:
        """forward(q, k, v) for few queries: those of the tokens that the head uses, such as the class token.

        k and v are the keys and values of `tokens`. Some mixers compute the result without projecting them.
        """
        return self(q, *tokens.keys_and_values())

    def explain_read(self, q: Tensor, tokens: UnprojectedTokens) -> str:
        """The implementation that `read` uses, and the reason."""
        k, v = q.new_empty(2, *q.shape[:2], tokens.x.shape[1], q.shape[-1]).requires_grad_(q.requires_grad)
        return self.explain(q, k, v)

    def resize(self, old: Grid, new: Grid) -> None:
        """Fits parameters that depend on the token grid to another grid. Most mixers have none."""


MIXERS: Registry[Mixer] = Registry(
    "mixer", context=("heads", "head_dim", "tokens", "prefix", "layer", "seed"), within=within_memory
)


def build_mixer(
    spec: str | Spec,
    *,
    heads: int,
    head_dim: int,
    tokens: int | None = None,
    prefix: int = 0,
    layer: int = 0,
    seed: int | None = None,
) -> Mixer:
    """The mixer of a spec such as `softmax`, `favor(m=128)` or `relu(m=64, causal=True)`.

    `tokens` is the number of keys, including the `prefix` class tokens. Only mixers of fixed length (linformer) need
    it. Random features are a function of (seed, layer). Without a seed, torch's global generator draws one.

    Example:
        mixer = favorit.build_mixer("relu(m=64)", heads=4, head_dim=16)
        out = mixer(q, k, v)  # (B, heads, N, head_dim)
    """
    check_positive(heads=heads, head_dim=head_dim, **({} if tokens is None else {"tokens": tokens}))
    seed = seeds.chosen(seed)
    mixer = MIXERS.build(spec, heads=heads, head_dim=head_dim, tokens=tokens, prefix=prefix, layer=layer, seed=seed)
    mixer.heads, mixer.head_dim = heads, head_dim
    return mixer


def keep(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """x (B,H,N,D) with zeros for masked tokens, and zero gradients for them. Their values may be anything, also NaN."""
    return x if key_mask is None else x.masked_fill(~key_mask[:, None, :, None], 0.0)


def allowed_keys(q: Tensor, k: Tensor, key_mask: Tensor | None, causal: bool) -> Tensor | None:
    """The keys that each query may see, a boolean mask that broadcasts to (B,H,Nq,Nk); None if it sees all."""
    allowed = None if key_mask is None else key_mask[:, None, None, :]
    if causal:
        order = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        allowed = order if allowed is None else allowed & order
    return allowed
