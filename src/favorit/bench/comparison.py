"""A comparison: ours and a peer's way to do the same work, both as data, and whether they agree.

Each side is a module and the work that is timed with it. The weights of the peer are copied into ours before outputs
and gradients are compared, so that equal means equal mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from favorit import measure
from favorit.bench.memory import check_fits, grows_with_square, peak_bytes
from favorit.bench.models import training_step
from favorit.bench.speed import PROBES
from favorit.training.optim import adamw

Call = Callable[[], Any]
# How our side is run: as it comes, through torch.compile, or under autocast. Peers are always run as they come.
Way = Literal["eager", "compiled", "bf16"]
Work = Callable[["nn.Module", "Sizes", Way], Call]

# By how much outputs and gradients may differ. The mathematics is settled in fp32; bf16 has three digits at each
# operation.
TOLERANCES: dict[Way, float] = {"eager": 1e-4, "compiled": 1e-4, "bf16": 5e-2}
LR, WEIGHT_DECAY = 1e-4, 1e-4
CLASSES = 10


@dataclass(frozen=True)
class Sizes:
    """What the comparisons are run at. `depth` is that of the whole models; `data` is what the hybrid reads its images
    from.
    """

    batch: int = 128
    heads: int = 8
    tokens: int = 65
    head_dim: int = 16
    m: int = 128
    depth: int = 6
    data: str = "synthetic(size=32, train=50000)"
    data_dir: str | None = None

    @property
    def dim(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Contender:
    """One side: a module, and the call that is timed with it, made of (module, sizes, the way it is run)."""

    build: Callable[[Sizes], nn.Module]
    work: Work


@dataclass(frozen=True)
class Comparison:
    """`name` is ours, with {m} for the number of features; `package` must be installed for the peer.

    `adopt(ours, theirs)` copies the peer's weights; None where the two do different mathematics on purpose and only
    their cost is compared. `exactly` switches off, for the check, what the peer adds to the formula (an epsilon).
    `epoch` is a number of images for which times are extrapolated.
    """

    case: str
    name: str
    peer: str
    ours: Contender
    theirs: Contender
    inputs: Callable[[Sizes], tuple[Tensor, ...]]
    adopt: Callable[[Any, Any], None] | None
    package: str | None = None
    exactly: Callable[[], AbstractContextManager[None]] = nullcontext
    epoch: int | None = None

    @property
    def key(self) -> str:
        return f"{self.case}: {self.name} / {self.peer}"


@dataclass(frozen=True)
class Agreement:
    """The difference of outputs and of gradients of the inputs, whichever is larger; None where nothing is to agree.

    `as_it_is` is the same with what the check leaves out; `bytes_of_image` what one more image of a batch needs, both
    sides together; `flops` those of our matrix products for the whole batch, forward and (twice that) backward.
    """

    difference: float | None
    as_it_is: float | None
    bytes_of_image: float
    flops: int


def agreement(comparison: Comparison, sizes: Sizes, way: Way = "eager") -> Agreement:
    """Builds both sides with the same weights and compares them on the batch that will be timed: a smaller one may take
    another path.
    """
    _check_one_image(comparison, sizes)
    ours, theirs = comparison.ours.build(sizes), comparison.theirs.build(sizes)
    needed = sum(_bytes_of_image(module, comparison, sizes) for module in (ours, theirs))
    flops = 3 * sizes.batch * measure.flops(ours, *comparison.inputs(replace(sizes, batch=1)))[""]
    if comparison.adopt is None:
        return Agreement(None, None, needed, flops)
    comparison.adopt(ours, theirs)
    free = measure.free_memory()
    # A batch that does not fit will not be timed either.
    inputs = comparison.inputs(sizes if free is None or needed * sizes.batch < free else replace(sizes, batch=1))
    mine = _values_and_gradients(run_as(way, ours), inputs)
    with comparison.exactly():
        exact = _values_and_gradients(theirs, inputs)
    return Agreement(_difference(mine, exact), _difference(mine, _values_and_gradients(theirs, inputs)), needed, flops)


def _check_one_image(comparison: Comparison, sizes: Sizes) -> None:
    """An error before anything large is allocated, from what fewer tokens need; models have as many tokens as their
    images say.
    """

    def needed(tokens: int) -> int:
        one = replace(sizes, batch=1, tokens=tokens)
        modules = (comparison.ours.build(one), comparison.theirs.build(one))
        return sum(peak_bytes(partial(_values_and_gradients, module, comparison.inputs(one))) for module in modules)

    small, large = PROBES
    if sizes.tokens > large:
        check_fits("tokens", sizes.tokens, grows_with_square(small, needed(small), large, needed(large)))


def _values_and_gradients(module: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = module(*leaves)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad(out, leaves, probe)]


def _difference(mine: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest of outputs over the largest value, of gradients in norm.

    Of 10^8 features a few lie so near to the kink of relu that rounding decides their slope: single gradients differ
    where all is right.
    """
    of_output = ((mine[0] - theirs[0]).abs().max() / theirs[0].abs().max()).item()
    return max(of_output, *(((a - b).norm() / b.norm()).item() for a, b in zip(mine[1:], theirs[1:], strict=True)))


def _bytes_of_image(module: nn.Module, comparison: Comparison, sizes: Sizes) -> float:
    one, two = (comparison.inputs(replace(sizes, batch=images)) for images in (1, 2))
    return peak_bytes(partial(_values_and_gradients, module, two)) - peak_bytes(
        partial(_values_and_gradients, module, one)
    )


def run_as(way: Way, module: nn.Module) -> Callable[..., Tensor]:
    """The module as it is run that way."""
    ways: dict[Way, Callable[[nn.Module], Callable[..., Tensor]]] = {
        "eager": lambda it: it,
        "compiled": torch.compile,
        "bf16": _in_bf16,
    }
    return ways[way](module)


def _in_bf16(module: nn.Module) -> Callable[..., Tensor]:
    def forward(*inputs: Tensor) -> Tensor:
        with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
            return module(*inputs).float()

    return forward


def work_of_attention(inputs: Callable[[Sizes], tuple[Tensor, ...]]) -> Work:
    """Forward, and backward to the inputs and to the parameters there are."""

    def work(module: nn.Module, sizes: Sizes, way: Way) -> Call:
        leaves = [x.requires_grad_() for x in inputs(sizes)]
        wanted = [*leaves, *module.parameters()]
        grad, attend = torch.randn_like(module(*leaves)), run_as(way, module)
        return lambda: torch.autograd.grad(attend(*leaves), wanted, grad, allow_unused=True)

    return work


def work_of_step(inputs: Callable[[Sizes], tuple[Tensor, ...]], optimizer: Callable[[nn.Module], Optimizer]) -> Work:
    """Loss, backward and a step of the optimiser on one batch of images."""

    def work(module: nn.Module, sizes: Sizes, way: Way) -> Call:
        (images,), labels = inputs(sizes), torch.randint(CLASSES, (sizes.batch,))
        return partial(training_step, run_as(way, module), optimizer(module), images, labels)

    return work


def our_adamw(module: nn.Module) -> Optimizer:
    """The optimiser of `favorit train`."""
    (optimizer,) = adamw(module, lr=LR, weight_decay=WEIGHT_DECAY)
    return optimizer


def plain_adamw(module: nn.Module) -> Optimizer:
    """torch's AdamW as it comes: the peers have no optimiser of their own."""
    return torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
