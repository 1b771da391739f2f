"""Linear attention for few queries: compute the weights, mix the tokens, then project the result to values.

    s_ij = phi(q_i) . phi(k_j) exp(r_j - max r)
    w_ij = (s_ij + d) / sum_j (s_ij + d),  out_i = W_v sum_j w_ij x_j + b_v

Key features are computed in blocks and recomputed in backward. With fewer than D queries, the weights cost less than
the sums over keys that other implementations compute, and tokens are not projected to values. Forward and backward for
one query, starting at x, m=128: relu 31 -> 19 ms, favor 40 -> 25 ms (width 64, 4 heads).
Shapes: B batch, H heads, N keys, I queries, D head width, M features, G heads of images in a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from favorit.attention.cpu.block_features import ParameterGradients, cpu_kernel
from favorit.attention.cpu.limits import Limits
from favorit.attention.cpu.tiling import block_sizes, blocks_of_heads, buffer_for, chunks, slice_tokens
from favorit.attention.derivatives import first_derivatives_only
from favorit.attention.dtypes import widened
from favorit.attention.kernels.contract import ExponentialKernel, Kernel
from favorit.attention.mixer import UnprojectedTokens
from favorit.attention.stability import TINY, has_tiny_sum
from favorit.autocast import without_autocast


def read(q: Tensor, k: Tensor, tokens: UnprojectedTokens, kernel: Kernel, limits: Limits) -> Tensor | None:
    """(B,H,I,D) -> (B,H,I,D). k contains the projected keys of the tokens; products are computed in its dtype.

    None if a row sum of an `ExponentialKernel` is too small.
    """
    with without_autocast(k):
        w = _weights(kernel, limits, q, k)
    if w is None:
        return None
    mixed = torch.bmm(w.flatten(1, 2).to(tokens.x.dtype), tokens.x)
    return tokens.values(mixed.unflatten(1, w.shape[1:3]))


def _weights(kernel: Kernel, limits: Limits, q: Tensor, k: Tensor) -> Tensor | None:
    """w (B,H,I,N) in fp32 or fp64; products are in the dtype of k. None as in `read`."""
    q = q.to(widened(q.dtype))
    s = _Scores.apply(kernel, limits, kernel.queries(q).to(k.dtype), k, *kernel.parameters()).to(q.dtype) + TINY
    sums = s.sum(-1, keepdim=True)
    if isinstance(kernel, ExponentialKernel) and has_tiny_sum(sums, k.shape[-2]):
        return None
    return s / sums


class _Scores(torch.autograd.Function):
    """phi(q) (B,H,I,M), k (B,H,N,D) -> s (B,H,I,N). Nothing of size N x M outlives a block."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, limits: Limits, phi_q: Tensor, k: Tensor, *parameters: Tensor) -> Tensor:
        block_heads, block_tokens = block_sizes(k.shape[:2].numel(), k.shape[2], kernel.features, k.dtype, limits)
        features = cpu_kernel(kernel).block_features(kernel, k, needs_grad=False)[-1]
        buffer = k.new_empty(block_heads * block_tokens, kernel.features)
        s = k.new_empty(*phi_q.shape[:-1], k.shape[2])
        log_scales = k.new_empty(*k.shape[:2], 1, k.shape[2])
        ctx.width = k.shape[-1]
        k = features.prepare(k)
        for phi_q_GIM, k_GND, s_GIN, r_GN in blocks_of_heads(block_heads, phi_q, k, s, log_scales):
            for j in chunks(k.shape[2], block_tokens):
                k_j = slice_tokens(k_GND, j)
                phi, r, _ = features.compute(k_j, True, buffer_for(buffer, k_j))
                s_GIN[..., j] = torch.bmm(phi_q_GIM, phi.mT)
                if r is not None:
                    r_GN[..., j] = r.mT
        scale = None if r is None else torch.exp(log_scales - log_scales.amax(-1, keepdim=True))
        ctx.kernel = kernel
        ctx.sizes = (block_heads, block_tokens)
        # Backward recomputes features. The buffers are saved so that torch raises if they were redrawn in between.
        ctx.save_for_backward(phi_q, k, scale, *parameters, *kernel.buffers())
        return s if scale is None else s.mul_(scale)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad_s: Tensor) -> tuple[Tensor | None, ...]:
        phi_q, k, scale, *others = ctx.saved_tensors
        block_heads, block_tokens = ctx.sizes
        grad_products = grad_s if scale is None else grad_s * scale
        grad_phi_q = phi_q.new_zeros(phi_q.shape)
        grad_k = k.new_empty(*k.shape[:-1], ctx.width)
        parameter_grads = ParameterGradients(others[: len(list(ctx.kernel.parameters()))])
        features = cpu_kernel(ctx.kernel).block_features(ctx.kernel, k, needs_grad=True)[-1]
        phi_buffer, grad_buffer = k.new_empty(2, block_heads * block_tokens, ctx.kernel.features)
        with without_autocast(k):
            for phi_q_GIM, k_GND, grad_GIN, grad_phi_q_GIM, grad_k_GND in blocks_of_heads(
                block_heads, phi_q, k, grad_products, grad_phi_q, grad_k
            ):
                for j in chunks(k.shape[2], block_tokens):
                    k_j = slice_tokens(k_GND, j)
                    grad_j = grad_GIN[..., j]
                    block = features.compute(k_j, True, buffer_for(phi_buffer, k_j))
                    grad_phi_q_GIM.baddbmm_(grad_j, block.phi)
                    grad_phi = torch.bmm(grad_j.mT, phi_q_GIM, out=buffer_for(grad_buffer, block.phi))
                    parameter_grads.add(block.backward(grad_phi, grad_k_GND[:, j]))
        return None, None, grad_phi_q, grad_k, *parameter_grads.for_autograd()
