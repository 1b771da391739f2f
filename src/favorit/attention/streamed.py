"""Bidirectional linear attention in blocks that stay in cache, with a backward that recomputes features.

    forward     kv = sum_j phi(k_j) e_j v_j^T,  z = sum_j e_j phi(k_j),  e_j = exp(r_j - max r)
                out_i = (phi(q_i) kv / n + d mean v) / w_i,  w_i = phi(q_i) . z / n + d,  n keys seen
    backward    the gradients of these products by hand, those of phi by autograd on the block's own features

Nothing of size N x M outlives a block: kept for the backward are q, k, v, out, w and, M x (D+1) for each head, kv and z.
Shapes: B batch, H heads, N tokens, D head width, M features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from favorit.attention.kernel import Kernel

# Added to the mean weight of a row: a row whose features all vanish becomes the mean of v instead of 0/0.
TINY = 1e-30
# Features of one block, in numbers: 1 MiB of fp32, measured best on a CPU with 512 KiB of L2 for each core (LOG.md).
BLOCK_NUMBERS = 1 << 18
SHORTEST_BLOCK = 64


def finite(r: Tensor) -> Tensor:
    """A maximum over no keys is -inf; as the lowest finite number it can be subtracted from -inf."""
    return r.clamp(min=torch.finfo(r.dtype).min)


def plain(phi_q: Tensor, phi_k: Tensor, r: Tensor, v: Tensor) -> Tensor:
    """The same in six lines, all features at once: what `torch.compile` is given."""
    kept, scale = r > -torch.inf, torch.exp(r - finite(r.amax(-2, keepdim=True)))
    count = kept.sum(-2, keepdim=True).clamp(min=1)
    mean_v = (v * kept).sum(-2, keepdim=True) / count
    weighted = phi_q @ (phi_k.mT @ (scale * v)) / count + TINY * mean_v
    weight = phi_q @ (phi_k.mT @ scale) / count + TINY
    return weighted / weight


def streamed(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D), (B,Nk) -> (B,H,Nq,D)."""
    return _Streamed.apply(kernel, key_mask, q, k, v, *kernel.parameters())


def block_sizes(batch: int, heads: int, tokens: int, features: int) -> tuple[int, int]:
    """(images, tokens) of a block: as many images as fit, and where one alone does not, as many of its tokens."""
    of_one_token = heads * features
    images = max(1, min(batch, BLOCK_NUMBERS // (of_one_token * tokens)))
    return images, max(min(SHORTEST_BLOCK, tokens), min(tokens, BLOCK_NUMBERS // (of_one_token * images)))


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, key_mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        images, tokens = block_sizes(q.shape[0], q.shape[1], max(q.shape[-2], k.shape[-2]), kernel.features)
        kept = v.new_ones(1, 1, k.shape[-2], 1) if key_mask is None else key_mask[:, None, :, None].to(v)
        count = kept.sum(-2, keepdim=True).clamp(min=1).expand(len(v), 1, 1, 1)
        mean_v = (v * kept).sum(-2, keepdim=True) / count
        kv, z = v.new_zeros(*k.shape[:2], kernel.features, v.shape[-1]), v.new_zeros(*k.shape[:2], 1, kernel.features)
        top = v.new_full((*k.shape[:2], 1, 1), torch.finfo(v.dtype).min)
        # In the layout of the packed projection that q usually is a view of, the layer's output needs no copy.
        out = v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
        weight = v.new_empty(*q.shape[:3], 1)
        for b in _slices(q.shape[0], images):
            for j in _slices(k.shape[-2], tokens):
                phi, r = _keys(kernel, k[b, :, j].contiguous(), key_mask, b, j)
                higher = torch.maximum(top[b], r.amax(-2, keepdim=True))
                scale, shrink = torch.exp(r - higher), torch.exp(top[b] - higher)
                kv[b] = kv[b] * shrink + phi.mT @ (scale * v[b, :, j])
                # A row times a matrix: the column form of the same product takes a path eight times slower.
                z[b] = z[b] * shrink + scale.mT @ phi
                top[b] = higher
            for i in _slices(q.shape[-2], tokens):
                phi = kernel.queries(q[b, :, i].contiguous())
                w = (z[b] @ phi.mT).mT / count[b] + TINY
                out[b, :, i] = (phi @ kv[b] / count[b] + TINY * mean_v[b]) / w
                weight[b, :, i] = w
        ctx.kernel, ctx.key_mask, ctx.images, ctx.tokens = kernel, key_mask, images, tokens
        ctx.save_for_backward(q, k, v, kv, z, top, kept.expand(len(v), -1, -1, -1), count, out, weight, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, kv, z, top, kept, count, out, weight, *parameters = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        trained = [p for p in parameters if p.requires_grad]
        grad_parameters = [torch.zeros_like(p) if p.requires_grad else None for p in parameters]
        totals = [total for total in grad_parameters if total is not None]

        def through_features(phi: Tensor, x: Tensor, grad_phi: Tensor) -> Tensor:
            grad_x, *others = torch.autograd.grad(phi, (x, *trained), grad_phi, allow_unused=True)
            for total, grad in zip(totals, others, strict=True):
                if grad is not None:
                    total += grad
            return grad_x

        with torch.autocast(q.device.type, enabled=False):
            for b in _slices(q.shape[0], ctx.images):
                # The quotient rule: the gradients of phi(q_i) kv and, as one more column, of phi(q_i) . z.
                of_kv = grad_out[b] / (weight[b] * count[b])
                of_both = torch.cat([of_kv, -(of_kv * out[b]).sum(-1, keepdim=True)], -1)
                kv_and_z = torch.cat([kv[b].mT, z[b]], -2)
                grad_kv, grad_z = torch.zeros_like(kv[b]), torch.zeros_like(z[b])
                for i in _slices(q.shape[-2], ctx.tokens):
                    x, phi = _with_gradient(ctx.kernel.queries, q[b, :, i])
                    grad_kv += phi.detach().mT @ of_kv[..., i, :]
                    grad_z += of_both[..., i, -1:].mT @ phi.detach()
                    grad_q[b, :, i] = through_features(phi, x, of_both[..., i, :] @ kv_and_z)
                fallback = TINY * of_kv.sum(-2, keepdim=True)
                grad_kv_and_z = torch.cat([grad_kv.mT, grad_z], -2)
                for j in _slices(k.shape[-2], ctx.tokens):
                    x, (phi, r) = _with_gradient(lambda x, b=b, j=j: _keys(ctx.kernel, x, ctx.key_mask, b, j), k[b, :, j])
                    scale = torch.exp(r - top[b])
                    grad_v[b, :, j] = scale * (phi.detach() @ grad_kv) + fallback * kept[b, :, j]
                    both = torch.cat([scale * v[b, :, j], scale], -1)
                    grad_k[b, :, j] = through_features(phi, x, both @ grad_kv_and_z)
        return None, None, grad_q, grad_k, grad_v, *grad_parameters


def _keys(kernel: Kernel, k: Tensor, key_mask: Tensor | None, images: slice, tokens: slice) -> tuple[Tensor, Tensor]:
    """The features of a block of keys; a key left out by the mask has r = -inf."""
    phi, r = kernel.keys(k)
    return phi, r if key_mask is None else r.masked_fill(~key_mask[images, None, tokens, None], -torch.inf)


def _with_gradient(function: Any, x: Tensor) -> tuple[Tensor, Any]:
    """(x as a contiguous leaf, function(x) with its graph)."""
    leaf = x.detach().contiguous().requires_grad_()
    with torch.enable_grad():
        return leaf, function(leaf)
