"""A plain Vision Transformer in torch, as a baseline: pre-norm blocks, class token, learned positions.

The attention layer is an argument. `Packed` is the usual one: it applies a function of (q, k, v).
Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Explicit(nn.Module):
    """softmax(q k^T / sqrt(D)) v with an explicit N x N matrix: the naive form."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return torch.matmul(scores.softmax(dim=-1), v)


class Fused(nn.Module):
    """torch's fused attention (SDPA), called directly."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Packed(nn.Module):
    """One linear layer for q, k and v, an attention function, one linear layer for the output."""

    def __init__(self, dim: int, heads: int, attention: nn.Module) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(self.attention(q, k, v).transpose(1, 2).reshape(batch, tokens, dim))


class PlainBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, attention: nn.Module, dim: int, mlp_dim: int) -> None:
        super().__init__()
        self.norm_attention, self.attention = nn.LayerNorm(dim), attention
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class PlainViT(nn.Module):
    """Square images of side `side`, in patches of side `patch` -> logits."""

    def __init__(
        self,
        attention: Callable[[], nn.Module],
        *,
        dim: int,
        depth: int,
        mlp_dim: int,
        side: int = 32,
        patch: int = 4,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (side // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(PlainBlock(attention(), dim, mlp_dim) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])
