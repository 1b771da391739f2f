"""The attention layer of a block. It can be used in any model.

Shapes: B batch, N tokens, C model width, H heads, D head width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from favorit import seeds
from favorit.allocation import within_memory
from favorit.attention.local import LOCALS
from favorit.attention.mixer import Mixer, UnprojectedTokens, build_mixer, keep
from favorit.errors import FavoritError, check_positive
from favorit.grammar import quote
from favorit.grids import Grid, check_grid
from favorit.position import Position, acts_on_qk, build_position
from favorit.tensors import check_key_mask, check_tensor

# Elements of masked tokens from this size on count as zero. Projections and products of smaller ones do not overflow.
LARGEST_PADDING = 1e12


class Attention(nn.Module):
    """out(mixer(q, k, v)) with q, k, v = qkv(x) in H heads; (B,N,C) -> (B,N,C).

    Absolute positions are added to x, others act on q and k.

    Args:
        dim: The width C of the tokens.
        heads: The number of heads. Their width is `head_dim`, by default dim / heads.
        mixer: A spec such as `relu(m=64)` (`favorit list mixers`), or a Mixer.
        position: A spec such as `rope2d` (`favorit list positions`), or a Position.
        qk_norm: Normalize q and k per head.
        local: A spec such as `dwconv(3)`, which adds a depthwise convolution of v.
        grid, prefix: The token layout: rows and columns, after `prefix` class tokens. linformer needs them, and learned
            positions use them for the size of their table (16x16 without a grid, interpolated in forward).
        layer, seed: They determine random features. Without a seed, torch's global generator draws one.

    Example:
        layer = favorit.Attention(dim=64, heads=4, mixer="relu(m=128)", position="rope2d")
        tokens = layer(torch.randn(8, 1 + 6 * 9, 64), grid=(6, 9), prefix=1)
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mixer: str | Mixer = "softmax",
        position: str | Position = "none",
        head_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        qk_norm: bool = False,
        local: str | None = None,
        *,
        grid: Grid | None = None,
        prefix: int = 0,
        layer: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.head_dim = dim, heads, head_width(dim, heads, head_dim)
        inner = self.heads * self.head_dim
        seed = seeds.chosen(seed)
        with within_memory(f"Attention(dim={dim}, heads={heads})"):
            self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias)
            self.out = nn.Linear(inner, dim, bias=out_bias)
            self.norm_q = HeadNorm(self.head_dim) if qk_norm else nn.Identity()
            self.norm_k = HeadNorm(self.head_dim) if qk_norm else nn.Identity()
        shape: dict[str, Any] = dict(heads=heads, head_dim=self.head_dim, prefix=prefix, layer=layer, seed=seed)
        if grid is not None:
            check_grid(grid)
        tokens = None if grid is None else prefix + math.prod(grid)
        self.mixer = mixer if isinstance(mixer, Mixer) else build_mixer(mixer, tokens=tokens, **shape)
        self._check_mixer()
        self.position = (
            position if isinstance(position, Position) else build_position(position, dim=dim, grid=grid, **shape)
        )
        self.local = None if local is None else LOCALS.build(local, heads=heads, head_dim=self.head_dim)
        self._check_prefix(prefix)

    def forward(
        self,
        x: Tensor,
        grid: Grid | None = None,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        num_queries: int | None = None,
    ) -> Tensor:
        """(B,N,C) -> (B,N,C), or (B,num_queries,C) for the first `num_queries` tokens.

        Without a grid, tokens lie in one row. `key_mask` (B,N) is true for the tokens that serve as keys. The others
        may contain anything, for example uninitialized padding. Their elements that are NaN or at least
        LARGEST_PADDING in size count as zero.
        """
        grid = self._check_tokens(x, grid, prefix, key_mask)
        if num_queries is not None:
            _check_num_queries(num_queries)
        if key_mask is not None:
            x = _clear_padding(x, key_mask)
        if num_queries is not None and key_mask is None and self._can_skip_projections():
            x = self.position.tokens(x, grid, prefix)
            return self._project_out(self.mixer.read(*self._first_queries(x, num_queries)))
        q, k, v = self._project_qkv(x, grid, prefix)
        mixed = self.mixer(q if num_queries is None else q[:, :, :num_queries], k, v, key_mask=key_mask)
        if self.local is not None:
            mixed = mixed + self.local(keep(v, key_mask), grid, prefix)[:, :, : mixed.shape[2]]
        return self._project_out(mixed)

    def weights(self, x: Tensor, grid: Grid | None = None, prefix: int = 0, key_mask: Tensor | None = None) -> Tensor:
        """The attention map (B,H,N,N), also for mixers that never form one."""
        grid = self._check_tokens(x, grid, prefix, key_mask)
        x = x if key_mask is None else _clear_padding(x, key_mask)
        q, k, _ = self._project_qkv(x, grid, prefix)
        return self.mixer.weights(q, k, key_mask=key_mask)

    def explain(self, batch: int, tokens: int, num_queries: int | None = None) -> str:
        """The implementation that the mixer uses for a training batch, and the reason."""
        parameter = next(self.parameters())
        if num_queries is not None and self._can_skip_projections():
            x = parameter.new_zeros(batch, tokens, self.qkv.in_features).requires_grad_()
            return self.mixer.explain_read(*self._first_queries(x, num_queries))
        q, k, v = parameter.new_empty(3, batch, self.heads, tokens, self.head_dim).requires_grad_()
        return self.mixer.explain(q[:, :, :num_queries], k, v)

    def _check_tokens(self, x: Tensor, grid: Grid | None, prefix: int, key_mask: Tensor | None) -> Grid:
        """The grid of the tokens x. Raises an error if their dtype, width or number does not fit."""
        check_tensor("x", x, ("B", "N", self.dim), weight=self.qkv.weight)
        if isinstance(grid, Tensor):
            raise FavoritError("the second argument is a tensor: give only x, the layer computes q, k and v from it")
        check_key_mask(key_mask, *x.shape[:2])
        self._check_prefix(prefix)
        if grid is None:
            if prefix and prefix > x.shape[1]:
                raise FavoritError(f"got {x.shape[1]} tokens, fewer than prefix={prefix}")
            return (1, x.shape[1] - prefix)
        check_grid(grid)
        expected = prefix + math.prod(grid)
        if x.shape[1] != expected:
            raise FavoritError(
                f"got {x.shape[1]} tokens, but prefix={prefix} and grid={tuple(grid)} make {expected} tokens"
            )
        return grid

    def _project_qkv(self, x: Tensor, grid: Grid, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._split_heads(self.qkv(self.position.tokens(x, grid, prefix)))
        q, k = self.position.qk(self.norm_q(q), self.norm_k(k), grid, prefix)
        return q, k, v

    def _split_heads(self, packed: Tensor) -> list[Tensor]:
        """q, k, v (B,H,N,D) as views of the packed projection. Backward concatenates their gradients in one copy."""
        return [part.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for part in packed.chunk(3, -1)]

    def _project_out(self, mixed: Tensor) -> Tensor:
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _can_skip_projections(self) -> bool:
        """True if only the mixer uses q, k and v, exactly as `qkv` returns them, and no hook would miss a call."""
        is_plain_linear = type(self.qkv) is nn.Linear and type(self.qkv.weight) is nn.Parameter
        has_norms = not type(self.norm_q) is type(self.norm_k) is nn.Identity
        acts_between = has_norms or self.local is not None or acts_on_qk(self.position)
        is_hooked = any(map(_is_hooked, (self.qkv, self.norm_q, self.norm_k, self.mixer)))
        return is_plain_linear and not acts_between and not is_hooked

    def _first_queries(self, x: Tensor, num_queries: int) -> tuple[Tensor, UnprojectedTokens]:
        """The queries (B,H,num_queries,D) of the first tokens, and all tokens with the weights of k and v."""
        shape = (3, self.heads, self.head_dim)
        weight = self.qkv.weight.unflatten(0, shape)
        bias = None if self.qkv.bias is None else self.qkv.bias.unflatten(0, shape)
        q = F.linear(x[:, :num_queries], weight[0].flatten(0, 1), None if bias is None else bias[0].flatten())
        q = q.unflatten(-1, shape[1:]).transpose(1, 2)
        return q, UnprojectedTokens(x, weight[1:], None if bias is None else bias[1:])

    def _check_mixer(self) -> None:
        """Raises an error if a given mixer was built for other heads."""
        built = (self.mixer.heads, self.mixer.head_dim)
        if built != (None, None) and built != (self.heads, self.head_dim):
            raise FavoritError(
                f"the mixer was built for {built[0]} heads of width {built[1]}, "
                f"but this layer has {self.heads} of width {self.head_dim}: build it with the same heads and head_dim"
            )

    def _check_prefix(self, prefix: int) -> None:
        if isinstance(prefix, bool) or not isinstance(prefix, int) or prefix < 0:
            raise FavoritError(
                f"prefix={quote(prefix)} is not valid: the number of class tokens before the grid, 0 or more"
            )
        if prefix and self.mixer.causal:
            raise FavoritError(
                f"a causal mixer with prefix={prefix} (head=cls) is not valid: "
                "the class token would see only itself; use head=mean or seqpool"
            )


def _check_num_queries(num_queries: int) -> None:
    if isinstance(num_queries, bool | float | str) or num_queries < 0:
        raise FavoritError(f"num_queries={num_queries!r} is not valid: a number of tokens, 0 or more")


def _clear_padding(x: Tensor, key_mask: Tensor) -> Tensor:
    """x with zeros for NaN and large elements of masked tokens: in backward, 0 * NaN would reach the weights."""
    return torch.where(key_mask[..., None] | (x.abs() < LARGEST_PADDING), x, 0.0)


def _is_hooked(module: nn.Module) -> bool:
    """True if the module has hooks or a patched forward."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


class HeadNorm(nn.RMSNorm):
    """w x / sqrt(mean x^2 + eps) over the last axis, computed in the dtype of w.

    Under autocast, x has half precision and w has not. torch has no fused implementation for two dtypes, and warns.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def head_width(dim: int, heads: int, head_dim: int | None) -> int:
    """head_dim if given, else dim / heads, which must be an integer."""
    check_positive(dim=dim, heads=heads, **({} if head_dim is None else {"head_dim": head_dim}))
    if head_dim is None and dim % heads:
        raise FavoritError(f"heads={heads} does not divide dim={dim}: choose heads that do, or give head_dim")
    return head_dim or dim // heads
