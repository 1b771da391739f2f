"""A batch divided between threads: each thread takes its share of the images through the whole model, and back.

Torch splits every single operation between its threads and waits for the slowest at its end, some hundred times a step; shares wait twice,
after the forward and after the backward, and the activations of a share stay nearer to its core (LOG.md).

Shapes: B batch, K image channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from favorit.attention.blocks import at_once, is_watched
from favorit.model.drop import Dropout, drawing_from, drops

# A share of fewer images is too little work for a thread of its own.
FEWEST_IMAGES = 16
# Each share has gradients of its own until they are added: at most so many numbers in all (256 MiB).
MOST_GRADIENTS = 1 << 26

Compute = Callable[[Tensor], Tensor]
Forward = Callable[[Tensor, int | None], Tensor]


def in_shares(compute: Compute, images: Tensor, module: nn.Module) -> Tensor:
    """compute(images) (B,K,rows,columns) -> (B,...), where `compute` treats each image by itself with the parameters of `module`."""
    count = shares(len(images), images.device, module)
    if count == 1:
        return compute(images)

    def forward(own: Tensor, seed: int | None) -> Tensor:
        with nullcontext() if seed is None else drawing_from(seed):
            return compute(own)

    seeds = torch.randint(1 << 62, (count,)).tolist() if drops(module) else [None] * count
    parameters = [p for p in module.parameters() if p.requires_grad]
    if torch.is_grad_enabled() and (parameters or images.requires_grad):
        return _Shares.apply(forward, seeds, images, *parameters)
    return torch.cat(_over(forward, images.tensor_split(count), seeds))


def shares(batch: int, device: torch.device, module: nn.Module) -> int:
    """One for each thread of a CPU, or 1: a function of shapes and threads, and of whether `module` can be divided."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or batch < threads * FEWEST_IMAGES or torch.compiler.is_compiling() or is_watched():
        return 1
    if threads * sum(p.numel() for p in module.parameters() if p.requires_grad) > MOST_GRADIENTS:
        return 1
    return threads if all(_divides(part) for part in module.modules()) else 1


def _divides(module: nn.Module) -> bool:
    """Whether shares change neither what `module` computes nor what anyone is told of it.

    Batch norm mixes images, a dropout that is not ours draws in the order of threads, and a hook expects the whole batch.
    """
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    draws = isinstance(module, _DropoutNd) and not isinstance(module, Dropout) and module.p > 0
    return not (module.training and (draws or isinstance(module, _BatchNorm)))


class _Shares(torch.autograd.Function):
    """A graph for each share, made in the forward and gone through in the backward."""

    @staticmethod
    def forward(ctx: Any, forward: Forward, seeds: Sequence[int | None], images: Tensor, *parameters: Tensor) -> Tensor:
        ctx.parameters = parameters
        ctx.images = [own.detach().requires_grad_(images.requires_grad) for own in images.tensor_split(len(seeds))]
        with torch.enable_grad():
            ctx.outputs = _over(forward, ctx.images, seeds)
        return torch.cat([own.detach() for own in ctx.outputs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        kept = torch._C._autograd._get_current_graph_task_keep_graph()

        def pull(images: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
            wanted = [*([images] if images.requires_grad else []), *ctx.parameters]
            return torch.autograd.grad(out, wanted, grad, retain_graph=kept, allow_unused=True)

        grads = grad_out.tensor_split(len(ctx.outputs))
        found = list(zip(*_over(pull, ctx.images, ctx.outputs, grads), strict=True))
        of_images = torch.cat(found.pop(0)) if ctx.images[0].requires_grad else None
        return None, None, of_images, *(None if parts[0] is None else sum(parts) for parts in found)


def _over(work: Callable[..., Any], *shares_of: Sequence[Any]) -> list[Any]:
    return at_once([partial(work, *own) for own in zip(*shares_of, strict=True)])
