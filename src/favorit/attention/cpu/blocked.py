"""Bidirectional linear attention in blocks that stay in cache. Backward recomputes the features.

    forward     kz = sum_j e_j [v_j, 1] phi(k_j)^T,  e_j = exp(r_j - max r)
                [s_i, w_i] = kz phi(q_i),  out_i = (s_i + d sum_j v_j) / (w_i + d n),  n keys seen
    backward    hand-written for these products; `Features.backward` continues from phi to q and k

Nothing of size N x M outlives a block. Kept for backward: q, k, e [v, 1], out, w and kz, which is (D + 1) x M per head.
Compared to all features at once (`short.py`), with m=128 and 8 heads of width 16 on one thread: relu 195 -> 53 ms
forward, 557 -> 170 ms with backward; favor 233 -> 79 ms and 528 -> 225 ms.

In bf16, v and out are centered (`center`). Relu attention in bf16 takes 0.80 of the time in fp32.
Shapes: B batch, H heads, N tokens, D head width, E = D + 1, M features, G heads of images in a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from favorit.attention.cpu import in_parts
from favorit.attention.cpu.block_features import (
    BlockFeatures,
    Features,
    ParameterGradients,
    append_one,
    cpu_kernel,
)
from favorit.attention.cpu.limits import Limits
from favorit.attention.cpu.tiling import block_sizes, blocks_of_heads, buffer_for, chunks, slice_tokens
from favorit.attention.derivatives import first_derivatives_only
from favorit.attention.dtypes import widened
from favorit.attention.kernels.contract import ExponentialKernel, Kernel
from favorit.attention.stability import TINY, finite, guard, has_tiny_sum, or_zero
from favorit.autocast import without_autocast

# In bf16, the mean features of queries are estimated from every fifth query. A stride of 5 then samples every column of
# the grid, because sides of usual grids are not divisible by 5.
QUERY_STRIDE = 5


def attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, kernel: Kernel, limits: Limits) -> Tensor:
    """(B,H,Nq,D), (B,H,Nk,D), (B,H,Nk,D), (B,Nk) -> (B,H,Nq,D); products are in the dtype of v.

    If a row sum of an `ExponentialKernel` is too small, attention is computed from the exponents instead.
    """
    out = _BlockedAttention.apply(kernel, limits, key_mask, q, k, v, *kernel.parameters())
    if out is None:
        assert isinstance(kernel, ExponentialKernel)
        return in_parts.attend_exactly(q, k, v, key_mask, kernel, limits)
    return out


def attend_in_bf16(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, limits: Limits) -> Tensor:
    """`attend` in bf16, without a mask."""
    with without_autocast(v):
        return attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), None, kernel, limits)


class _Sums(NamedTuple):
    """Intermediate results of forward, before d is added and s is divided by w."""

    q: Tensor  # (B,H,Nq,...), prepared for the feature map
    k: Tensor  # (B,H,Nk,...)
    values: Tensor  # (B,H,Nk,E): e [v, 1]
    kz: Tensor  # (B,H,E,M)
    s: Tensor  # (B,H,Nq,D)
    weight: Tensor  # (B,H,1,Nq)
    mean: Tensor | None  # (B,H,1,D): what to add to the outputs (`center`), in bf16 only
    is_scaled: bool  # whether e differs from 1


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: Kernel,
        limits: Limits,
        key_mask: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *parameters: Tensor,
    ) -> Tensor | None:
        wide = widened(v.dtype)
        kept = _expand_mask(key_mask, k)
        sizes = block_sizes(q.shape[:2].numel(), max(q.shape[-2], k.shape[-2]), kernel.features, v.dtype, limits)
        implementations = cpu_kernel(kernel).block_features(kernel, v, needs_grad=False)
        implementation, sums = _first_valid_sums(implementations, kernel.features, sizes, q, k, v, kept)
        s, weight, mean = sums.s, sums.weight, sums.mean
        # Adding d changes only tiny row sums; for others it is below rounding.
        needs_guard = has_tiny_sum(weight, k.shape[-2])
        if needs_guard:
            seen = v if mean is None else sums.values[..., :-1]
            count = v.new_full((1, 1), k.shape[-2]) if kept is None else kept.sum(-2, keepdim=True, dtype=wide)
            s.add_(TINY * (seen if kept is None else seen * kept).sum(-2, keepdim=True))
            weight.add_(guard(count).to(weight.dtype))
            if isinstance(kernel, ExponentialKernel) and has_tiny_sum(weight, k.shape[-2]):
                return None
        out = s.div_(weight.mT.to(wide))  # dividing bf16 rows by a bf16 column takes torch three times as long
        ctx.kernel = kernel
        ctx.key_mask = key_mask
        ctx.sizes = sizes
        ctx.implementation = implementation
        ctx.is_scaled = sums.is_scaled
        ctx.needs_guard = needs_guard
        ctx.width = q.shape[-1]
        # Backward recomputes features. The buffers are saved so that torch raises if they were redrawn in between.
        ctx.save_for_backward(sums.q, sums.k, sums.values, sums.kz, out, weight, *parameters, *kernel.buffers())
        return out if mean is None else (out + mean).to(v.dtype)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, values, kz, out, weight, *others = ctx.saved_tensors
        block_heads, block_tokens = ctx.sizes
        num_features = ctx.kernel.features
        grad_q = q.new_empty(*q.shape[:-1], ctx.width)
        grad_k = k.new_empty(*k.shape[:-1], ctx.width)
        grad_v = values.new_empty(*values.shape[:-1], out.shape[-1])
        parameter_grads = ParameterGradients(others[: len(list(ctx.kernel.parameters()))])
        features = cpu_kernel(ctx.kernel).block_features(ctx.kernel, out, needs_grad=True)[ctx.implementation]
        phi_buffer, grad_phi_buffer = out.new_empty(2, block_heads * block_tokens, num_features)
        grad_kz_buffer = kz.new_empty(block_heads, *kz.shape[2:])
        grad_sw = _quotient_rule(grad_out.to(widened(out.dtype)), out, weight)

        def backward_features(block: Features, left: Tensor, right: Tensor, grad_x: Tensor) -> None:
            """Computes grad_phi = left @ right, writes grad_x, and adds the gradients of the kernel's parameters."""
            grad_phi = torch.bmm(left, right, out=buffer_for(grad_phi_buffer, left))
            parameter_grads.add(block.backward(grad_phi, grad_x))

        with without_autocast(q):
            for q_GND, k_GND, v_GNE, grad_sw_GNE, kz_GEM, grad_q_GND, grad_k_GND, grad_v_GND in blocks_of_heads(
                block_heads, q, k, values, grad_sw.to(out.dtype), kz, grad_q, grad_k, grad_v
            ):
                grad_kz = grad_kz_buffer[: len(kz_GEM)]
                for i in chunks(q.shape[-2], block_tokens):
                    block = _compute_features(phi_buffer, features, slice_tokens(q_GND, i), False)
                    grad_sw_i = slice_tokens(grad_sw_GNE, i)
                    torch.baddbmm(grad_kz, grad_sw_i.mT, block.phi, beta=bool(i.start), out=grad_kz)
                    backward_features(block, grad_sw_i, kz_GEM, slice_tokens(grad_q_GND, i))
                for j in chunks(k.shape[-2], block_tokens):
                    block = _compute_features(phi_buffer, features, slice_tokens(k_GND, j), True)
                    v_j = slice_tokens(v_GNE, j)
                    grad_v_j = torch.bmm(block.phi, grad_kz[:, :-1].mT, out=slice_tokens(grad_v_GND, j))
                    if ctx.is_scaled:
                        grad_v_j.mul_(v_j[..., -1:])
                    backward_features(block, v_j, grad_kz, slice_tokens(grad_k_GND, j))
        if ctx.needs_guard:
            kept = _expand_mask(ctx.key_mask, k)
            grad_seen = TINY * grad_sw[..., :-1].sum(-2, keepdim=True)
            grad_v.add_(grad_seen if kept is None else grad_seen * kept)
        return None, None, None, grad_q, grad_k, grad_v, *parameter_grads.for_autograd()


def _first_valid_sums(implementations: list[BlockFeatures], *arguments: Any) -> tuple[int, _Sums]:
    """The index of the first implementation that is valid for these inputs, and its sums."""
    *_, kept = arguments
    for position, features in enumerate(implementations):
        if kept is not None and features.is_valid is not None:
            continue  # masked keys have e = 0, which never passes the range check
        sums = _compute_sums(features, *arguments)
        if sums is not None:
            return position, sums
    raise AssertionError("the last implementation handles every input")


def _compute_sums(
    features: BlockFeatures,
    num_features: int,
    sizes: tuple[int, int],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: Tensor | None,
) -> _Sums | None:
    """The sums of forward; None if they leave the range in which `features` is valid."""
    block_heads, block_tokens = sizes
    wide = widened(v.dtype)
    r = None if features.log_scale is None else features.log_scale(k)
    r = r if kept is None else _remove_masked(r, k, kept)
    values = append_one(v) if r is None else _scale_and_append(v, (r - finite(r.amax(-2, keepdim=True))).exp_())
    if features.is_valid is not None and not features.is_valid(values[..., -1]):
        return None
    q_prepared, k_prepared = features.prepare(q), features.prepare(k)
    kz = v.new_empty(*k.shape[:2], v.shape[-1] + 1, num_features)
    s = v.new_empty(*q.shape[:-1], v.shape[-1])
    weight = v.new_empty(*q.shape[:2], 1, q.shape[2])
    mean = None if v.dtype == wide else v.new_empty(*v.shape[:2], 1, v.shape[-1], dtype=wide)
    phi_buffer = v.new_empty(block_heads * block_tokens, num_features)
    for q_GND, k_GND, v_GNE, kept_GN, mean_GD, kz_GEM, s_GND, weight_GN in blocks_of_heads(
        block_heads, q_prepared, k_prepared, values, kept, mean, kz, s, weight
    ):
        if mean_GD is not None:
            some_queries = q_GND[:, ::QUERY_STRIDE].contiguous()
            mean_phi_q = _compute_features(phi_buffer, features, some_queries, False).phi.mean(-2, keepdim=True)
        maxima: list[Tensor] = []
        for j in chunks(k.shape[-2], block_tokens):
            phi, r_j, _ = _compute_features(phi_buffer, features, slice_tokens(k_GND, j), True)
            if mean_GD is not None:
                mean_GD.copy_(center(v_GNE, phi, mean_phi_q))
            v_j = slice_tokens(v_GNE, j)
            if r_j is not None:
                r_j = r_j if kept_GN is None else _remove_masked(r_j, phi, kept_GN[:, j])
                largest = finite(r_j.amax(-2, keepdim=True))
                if maxima:
                    largest = torch.maximum(maxima[-1], largest)
                    kz_GEM.mul_(torch.exp(maxima[-1] - largest))
                maxima.append(largest)
                v_j.mul_((r_j - largest).exp_())
            torch.baddbmm(kz_GEM, v_j.mT, phi, beta=bool(j.start), out=kz_GEM)
        for j, largest in zip(chunks(k.shape[-2], block_tokens), maxima[:-1]):
            slice_tokens(v_GNE, j).mul_(torch.exp(largest - maxima[-1]))
        for i in chunks(q.shape[-2], block_tokens):
            phi = _compute_features(phi_buffer, features, slice_tokens(q_GND, i), False).phi
            # A row times a matrix: computing it as a matrix times a column takes eight times as long.
            torch.bmm(kz_GEM[:, -1:], phi.mT, out=weight_GN[..., i])
            torch.bmm(phi, kz_GEM[:, :-1].mT, out=slice_tokens(s_GND, i))
        if features.is_valid is not None and not features.is_valid(kz_GEM[:, -1], weight_GN):
            return None
    is_scaled = r is not None or r_j is not None
    return _Sums(q_prepared, k_prepared, values, kz, s, weight, mean, is_scaled)


def center(v_and_one: Tensor, phi_k: Tensor, mean_phi_q: Tensor) -> Tensor:
    """Subtracts a weighted mean from v in [v, 1] (G,N,E), in place. Returns what to add to the outputs (G,1,D).

    Weights sum to one, so all outputs shift by this mean and no gradient changes. Without centering, a large offset
    that all values share would swamp the gradients of the weights, which are rounded to bf16. The mean uses the weights
    of the mean query (G,1,M): values with large weights are then close to zero and lose little in rounding. The result
    also contains the mean rounding error of v - mean, because rounding may shift all tokens in the same direction.
    """
    share = torch.bmm(mean_phi_q, phi_k.mT).float().add_(TINY)
    share.div_(share.sum(-1, keepdim=True))
    v = v_and_one[..., :-1]
    exact = v.float()
    mean = torch.bmm(share, exact)
    v.copy_(exact.sub_(mean))
    return mean.baddbmm_(share, exact.sub_(v))


def _compute_features(buffer: Tensor, features: BlockFeatures, x: Tensor, as_keys: bool) -> Features:
    """The features of x (G,N,...), stored in the block's buffer if the implementation uses it."""
    return features.compute(x, as_keys, buffer_for(buffer, x))


def _quotient_rule(grad_out: Tensor, out: Tensor, weight: Tensor) -> Tensor:
    """The gradients of s_i, g / w, and of w_i, -g . out / w, as an additional column."""
    both = grad_out.new_empty(*out.shape[:-1], out.shape[-1] + 1)
    grad_s = torch.div(grad_out, weight.mT.to(grad_out.dtype), out=both[..., :-1])
    torch.sum(grad_s * out, -1, keepdim=True, out=both[..., -1:]).neg_()
    return both


def _scale_and_append(v: Tensor, e: Tensor) -> Tensor:
    """e_j [v_j, 1]."""
    both = v.new_empty(*v.shape[:-1], v.shape[-1] + 1)
    torch.mul(v, e, out=both[..., :-1])
    both[..., -1:] = e
    return both


def _expand_mask(key_mask: Tensor | None, k: Tensor) -> Tensor | None:
    """The mask (B,N) as (B,H,N,1)."""
    return None if key_mask is None else key_mask[:, None, :, None].expand(*k.shape[:-1], 1)


def _remove_masked(r: Tensor | None, like: Tensor, kept: Tensor) -> Tensor:
    """r with -inf for the keys that are not kept."""
    return or_zero(r, like).masked_fill(~kept, -torch.inf)
