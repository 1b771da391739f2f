"""Linear attention of few queries: their weights first, over features of keys in blocks that are made again going back.

    s_ij = phi(q_i) . phi(k_j) exp(r_j - max r)
    w_ij = (s_ij + d) / sum_j (s_ij + d)

With fewer queries than a head is wide this is less work than the sums over keys that many queries share, and values are
mixed before they are projected. Shapes: B batch, H heads, N keys, I queries, D head width, M features, G heads of
images in a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from favorit.attention.blocks import slices
from favorit.attention.features import Totals, heads_in_blocks, lift_into, room_in, some_tokens
from favorit.attention.kernel import Kernel
from favorit.attention.precision import widened
from favorit.attention.streamed import TINY, block_sizes


def few_weights(kernel: Kernel, q: Tensor, k: Tensor) -> Tensor:
    """(B,H,I,D), (B,H,N,D) -> w (B,H,I,N) in fp32 or better; products are in the type of k."""
    q = q.to(widened(q.dtype))
    s = _Scores.apply(kernel, kernel.queries(q).to(k.dtype), k, *kernel.parameters()).to(q.dtype) + TINY
    return s / s.sum(-1, keepdim=True)


class _Scores(torch.autograd.Function):
    """phi(q), k -> s; nothing of size N x M outlives a block."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, phi_q: Tensor, k: Tensor, *parameters: Tensor) -> Tensor:
        groups, tokens = block_sizes(k.shape[:2].numel(), k.shape[2], kernel.features, k.dtype)
        lifter, room = kernel.lifters(k, pulled=False)[-1], k.new_empty(groups * tokens, kernel.features)
        s, exponents = k.new_empty(*phi_q.shape[:-1], k.shape[2]), k.new_empty(*k.shape[:2], 1, k.shape[2])
        ctx.width, k = k.shape[-1], lifter.prepared(k)
        for phi_GIM, k_GND, s_GIN, exponents_GN in heads_in_blocks(groups, phi_q, k, s, exponents):
            for j in slices(k.shape[2], tokens):
                phi, r, _ = lift_into(room, lifter, some_tokens(k_GND, j), True)
                s_GIN[..., j] = torch.bmm(phi_GIM, phi.mT)
                if r is not None:
                    exponents_GN[..., j] = r.mT
        scale = None if r is None else torch.exp(exponents - exponents.amax(-1, keepdim=True))
        ctx.kernel, ctx.sizes = kernel, (groups, tokens)
        # Features are made again going back. The buffers are kept so that torch refuses to when they were redrawn
        # meanwhile.
        ctx.save_for_backward(phi_q, k, scale, *parameters, *kernel.buffers())
        return s if scale is None else s.mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_s: Tensor) -> tuple[Tensor | None, ...]:
        phi_q, k, scale, *others = ctx.saved_tensors
        (groups, tokens), features = ctx.sizes, ctx.kernel.features
        of_s = grad_s if scale is None else grad_s * scale
        grad_phi, grad_k = phi_q.new_zeros(phi_q.shape), k.new_empty(*k.shape[:-1], ctx.width)
        totals = Totals(others[: len(list(ctx.kernel.parameters()))])
        lifter, (room, second_room) = ctx.kernel.lifters(k, pulled=True)[-1], k.new_empty(2, groups * tokens, features)
        with torch.autocast(k.device.type, enabled=False):
            for phi_GIM, k_GND, of_GIN, grad_phi_GIM, grad_k_GND in heads_in_blocks(
                groups, phi_q, k, of_s, grad_phi, grad_k
            ):
                for j in slices(k.shape[2], tokens):
                    of_j = of_GIN[..., j]
                    lifted = lift_into(room, lifter, some_tokens(k_GND, j), True)
                    grad_phi_GIM.baddbmm_(of_j, lifted.phi)
                    of_phi = torch.bmm(of_j.mT, phi_GIM, out=room_in(second_room, lifted.phi))
                    totals.add(lifted.pull(of_phi, grad_k_GND[:, j]))
        return None, grad_phi, grad_k, *totals.of_all()
