"""The attention layer: all that a block sees, and what a user drops into a model of their own.

Shapes: B batch, N tokens, C model width, H heads, D head width.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from favorit import seeds
from favorit.attention.local import LOCALS
from favorit.attention.mixer import Mixer, Tokens, build_mixer
from favorit.errors import FavoritError, positive
from favorit.grids import Grid
from favorit.position import Position, acts_on_qk, build_position


class Attention(nn.Module):
    """x -> out(mixer(q, k, v)), q, k, v = qkv(x) in H heads, q and k placed by the position; (B,N,C) -> (B,N,C).

    `mixer` and `position` are specs or built modules. `grid` and `prefix` are needed at build time only by what is as
    large as the grid (linformer), and wanted by learned positions, which otherwise start at 16x16 and are interpolated.
    `qk_norm` normalises q and k per head; `local="dwconv(3)"` adds a depthwise convolution of v. Without a seed random
    features come from torch's global generator.
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
        seed = seeds.fresh() if seed is None else seed
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias)
        self.out = nn.Linear(inner, dim, bias=out_bias)
        self.norm_q = HeadNorm(self.head_dim) if qk_norm else nn.Identity()
        self.norm_k = HeadNorm(self.head_dim) if qk_norm else nn.Identity()
        shape: dict[str, Any] = dict(heads=heads, head_dim=self.head_dim, prefix=prefix, layer=layer, seed=seed)
        tokens = None if grid is None else prefix + math.prod(grid)
        self.mixer = mixer if isinstance(mixer, Mixer) else build_mixer(mixer, tokens=tokens, **shape)
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
        reads: int | None = None,
    ) -> Tensor:
        """(B,N,C) -> (B,N,C), or (B,reads,C): the first tokens only, from all keys. Without a grid the tokens lie in
        one row.
        """
        grid = (1, x.shape[1] - prefix) if grid is None else grid
        if reads is not None and key_mask is None and self._is_plain():
            return self._joined(self.mixer.read(*self._few(self._tokens(x, grid, prefix), reads)))
        q, k, v = self._qkv(x, grid, prefix)
        mixed = self.mixer(q if reads is None else q[:, :, :reads], k, v, key_mask=key_mask)
        if self.local is not None:
            mixed = mixed + self.local(v, grid, prefix)[:, :, : mixed.shape[2]]
        return self._joined(mixed)

    def weights(self, x: Tensor, grid: Grid, prefix: int = 0, key_mask: Tensor | None = None) -> Tensor:
        """(B,H,N,N): the attention map of these tokens, also where the mixer never forms one."""
        q, k, _ = self._qkv(x, grid, prefix)
        return self.mixer.weights(q, k, key_mask=key_mask)

    def explain(self, batch: int, tokens: int, reads: int | None = None) -> str:
        """Which way a training batch takes through the mixer, and why."""
        some = next(self.parameters())
        if reads is not None and self._is_plain():
            return self.mixer.explain_read(
                *self._few(some.new_zeros(batch, tokens, self.qkv.in_features).requires_grad_(), reads)
            )
        q, k, v = some.new_empty(3, batch, self.heads, tokens, self.head_dim).requires_grad_()
        return self.mixer.explain(q[:, :, :reads], k, v)

    def _tokens(self, x: Tensor, grid: Grid, prefix: int) -> Tensor:
        self._check_prefix(prefix)
        if x.shape[-1] != self.dim:
            raise FavoritError(f"tokens of width {x.shape[-1]} came, but dim={self.dim}")
        if x.shape[1] != prefix + math.prod(grid):
            raise FavoritError(
                f"{x.shape[1]} tokens came, but prefix={prefix} and grid={tuple(grid)} make {prefix + math.prod(grid)}"
            )
        return self.position.tokens(x, grid, prefix)

    def _qkv(self, x: Tensor, grid: Grid, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._heads(self.qkv(self._tokens(x, grid, prefix)))
        q, k = self.position.qk(self.norm_q(q), self.norm_k(k), grid, prefix)
        return q, k, v

    def _heads(self, packed: Tensor) -> list[Tensor]:
        """q, k, v (B,H,N,D): views of one product, whose gradients are put together in one copy."""
        return [part.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2) for part in packed.chunk(3, -1)]

    def _joined(self, mixed: Tensor) -> Tensor:
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _is_plain(self) -> bool:
        """Whether q, k and v are what `qkv` makes of the tokens and go to the mixer only, with nobody between or
        watching.
        """
        linear = type(self.qkv) is nn.Linear and type(self.qkv.weight) is nn.Parameter
        alone = (
            type(self.norm_q) is type(self.norm_k) is nn.Identity
            and self.local is None
            and not acts_on_qk(self.position)
        )
        return linear and alone and not any(map(_is_watched, (self.qkv, self.norm_q, self.norm_k, self.mixer)))

    def _few(self, x: Tensor, reads: int) -> tuple[Tensor, Tokens]:
        """The queries (B,H,reads,D) of the first tokens, and all tokens with what makes keys and values of them."""
        parts = (3, self.heads, self.head_dim)
        weight, bias = (
            self.qkv.weight.unflatten(0, parts),
            None if self.qkv.bias is None else self.qkv.bias.unflatten(0, parts),
        )
        q = F.linear(x[:, :reads], weight[0].flatten(0, 1), None if bias is None else bias[0].flatten())
        q = q.unflatten(-1, parts[1:]).transpose(1, 2)
        return q, Tokens(x, weight[1:], None if bias is None else bias[1:])

    def _check_prefix(self, prefix: int) -> None:
        if prefix and self.mixer.causal:
            raise FavoritError(
                f"a causal mixer with prefix={prefix} (head=cls) is not valid: the first token sees itself only; use head=mean or seqpool"
            )


def _is_watched(module: nn.Module) -> bool:
    """Whether somebody put a hook on its calls, or a function in their place, which would not be called or with other
    tensors.
    """
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


class HeadNorm(nn.RMSNorm):
    """w x / sqrt(mean x^2 + eps) over the last axis, in the precision of w: under autocast x comes in half precision
    and w does not.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def head_width(dim: int, heads: int, head_dim: int | None) -> int:
    """head_dim where it is given, else dim / heads, which must be whole."""
    positive(dim=dim, heads=heads, **({} if head_dim is None else {"head_dim": head_dim}))
    if head_dim is None and dim % heads:
        raise FavoritError(f"heads={heads} does not divide dim={dim}: choose heads that do, or give head_dim")
    return head_dim or dim // heads
