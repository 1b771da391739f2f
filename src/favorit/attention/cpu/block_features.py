"""Feature maps of one block of tokens, each with a backward function that blocked attention calls.

`cpu/relu.py` and `cpu/favor.py` have hand-written implementations, which are looked up by kernel class. All other
kernels use the autograd implementation of this module.
Shapes: G heads of images in a block, N tokens, D head width, M features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from favorit.attention.kernels.contract import Kernel


class Features(NamedTuple):
    """The features of one block: phi (G,N,M) and, for keys, r (G,N,1) if it was computed with phi.

    For keys, phi is u of `Kernel.keys`: the features are phi exp(r).

    `backward(grad_phi, grad_x)` writes the gradient of x to `grad_x` and returns the gradients of the kernel's trained
    parameters. It may overwrite `grad_phi`.
    """

    phi: Tensor
    r: Tensor | None
    backward: Callable[[Tensor, Tensor], list[Tensor | None]]


class BlockFeatures(NamedTuple):
    """An implementation of a feature map that works block by block.

    `compute(x, as_keys, buffer)` returns the features of a block; it may store phi in the buffer (G,N,M). x is a block
    of `prepare(tokens)`, which runs once for all tokens and returns a contiguous tensor. `log_scale` computes r for all
    keys at once, if r does not depend on the features.

    `is_valid` checks positive values of attention: e_j = exp(r_j - max r), z = sum_j e_j phi(k_j), w_i = phi(q_i) . z.
    If it returns False, features left the safe range of this implementation, and the caller uses the next one.
    `is_valid=None` means that every input is valid.
    """

    compute: Callable[[Tensor, bool, Tensor], Features]
    prepare: Callable[[Tensor], Tensor] = Tensor.contiguous
    log_scale: Callable[[Tensor], Tensor] | None = None
    is_valid: Callable[..., bool] | None = None


class CpuKernel:
    """CPU implementations for a kernel class. The defaults of this base class are correct for every kernel."""

    def queries(self, kernel: Any, q: Tensor) -> Tensor:
        """`Kernel.queries` for short sequences."""
        return kernel.queries(q)

    def keys(self, kernel: Any, k: Tensor) -> tuple[Tensor, Tensor | None]:
        """`Kernel.keys` for short sequences."""
        return kernel.keys(k)

    def floor(self, kernel: Any) -> float:
        """A positive lower bound of all features; 0 if there is none."""
        return 0.0

    def allows_bf16(self, kernel: Any) -> bool:
        """True if computing features in bf16 adds no larger error than rounding the features."""
        return False

    def block_features(self, kernel: Any, like: Tensor, needs_grad: bool) -> list[BlockFeatures]:
        """Implementations for tokens of the dtype of `like`, fastest first. The last one handles every input."""
        return [_by_autograd(kernel, needs_grad)]


CPU_KERNELS: dict[type[Kernel], CpuKernel] = {}
_ANY_KERNEL = CpuKernel()


def cpu_kernel(kernel: Kernel) -> CpuKernel:
    """The entry of the kernel's exact class: subclasses do not inherit it, because they may compute other features."""
    return CPU_KERNELS.get(type(kernel), _ANY_KERNEL)


def _by_autograd(kernel: Kernel, needs_grad: bool) -> BlockFeatures:
    trained = [p for p in kernel.parameters() if p.requires_grad]

    def compute(x: Tensor, as_keys: bool, buffer: Tensor) -> Features:
        leaf = x.detach().requires_grad_(needs_grad)
        with torch.set_grad_enabled(needs_grad):
            phi, r = kernel.keys(leaf) if as_keys else (kernel.queries(leaf), None)

        def backward(grad_phi: Tensor, grad_x: Tensor) -> list[Tensor | None]:
            grad_leaf, *grad_trained = torch.autograd.grad(phi, (leaf, *trained), grad_phi, allow_unused=True)
            grad_x.copy_(grad_leaf)
            return [*grad_trained]

        return Features(phi.detach(), r, backward)

    return BlockFeatures(compute)


class ParameterGradients:
    """The gradients of a kernel's parameters, summed over blocks."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._sums = [p.new_zeros(p.shape) for p in parameters if p.requires_grad]

    def add(self, gradients: Iterable[Tensor | None]) -> None:
        """Adds the gradients of one block, one for each trained parameter. None counts as zero."""
        for total, gradient in zip(self._sums, gradients):
            if gradient is not None:
                total += gradient

    def for_autograd(self) -> list[Tensor | None]:
        """One gradient for each parameter; None for frozen ones."""
        sums = iter(self._sums)
        return [next(sums) if p.requires_grad else None for p in self._parameters]


def project(x: Tensor, columns: Tensor, buffer: Tensor) -> Tensor:
    """x @ columns, written to the buffer: (..., N, D), (D, M) -> (..., N, M). x and the buffer are contiguous."""
    torch.mm(x.view(-1, x.shape[-1]), columns, out=buffer.view(-1, columns.shape[-1]))
    return buffer


def append_one(x: Tensor) -> Tensor:
    """[x, 1], contiguous: (..., D) -> (..., D + 1)."""
    return torch.cat([x, x.new_ones(1).expand(*x.shape[:-1], 1)], -1)
