"""A comparison as data: our implementation and a peer's, and the check that both compute the same.

The check copies the peer's weights into ours. Equal outputs and gradients then mean equal mathematics.
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
from favorit.bench.memory import check_fits, fit_quadratic, peak_bytes
from favorit.bench.model_speed import training_step
from favorit.bench.speed import PROBE_TOKENS
from favorit.training.optim import adamw

Call = Callable[[], Any]
# How our side runs: eagerly, through torch.compile, or under autocast. Peers always run eagerly.
Mode = Literal["eager", "compiled", "bf16"]
MakeCall = Callable[["nn.Module", "Sizes", Mode], Call]

# The largest relative difference of outputs and gradients. The mathematics is checked in fp32; bf16 rounds each
# operation to about three digits.
TOLERANCES: dict[Mode, float] = {"eager": 1e-4, "compiled": 1e-4, "bf16": 5e-2}
LR, WEIGHT_DECAY = 1e-4, 1e-4
CLASSES = 10


@dataclass(frozen=True)
class Sizes:
    """The sizes of all comparisons. `depth` applies to whole models. The hybrid reads the data set `data`."""

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
class Implementation:
    """One side of a comparison: `build` returns its module, `make_call` the timed call of the module."""

    build: Callable[[Sizes], nn.Module]
    make_call: MakeCall


@dataclass(frozen=True)
class Comparison:
    """Our implementation and a peer's. `name` names ours; it contains {m} in place of the number of features.

    `package` is the package that the peer requires. `copy_weights(ours, theirs)` is None if the two differ on purpose
    and only their cost is compared. Inside `without_extras()`, the peer computes the plain formula, without additions
    such as an epsilon. `epoch_images` is the number of images in an epoch, to which the time of a step is extrapolated.
    """

    case: str
    name: str
    peer: str
    ours: Implementation
    theirs: Implementation
    inputs: Callable[[Sizes], tuple[Tensor, ...]]
    copy_weights: Callable[[Any, Any], None] | None
    package: str | None = None
    without_extras: Callable[[], AbstractContextManager[None]] = nullcontext
    epoch_images: int | None = None

    @property
    def key(self) -> str:
        return f"{self.case}: {self.name} / {self.peer}"


@dataclass(frozen=True)
class Agreement:
    """The result of a check.

    `difference` is the larger relative difference of outputs and input gradients, without the peer's extras;
    `difference_with_extras` includes them. Both are None if the two implementations differ on purpose.
    `bytes_per_image` is the memory that one more image needs on both sides together. `flops` are those of our matrix
    products for the whole batch; backward counts as twice the forward.
    """

    difference: float | None
    difference_with_extras: float | None
    bytes_per_image: float
    flops: int


def check_agreement(comparison: Comparison, sizes: Sizes, mode: Mode = "eager") -> Agreement:
    """Compares both sides with equal weights, on the timed batch: a smaller one may use another implementation."""
    _check_memory(comparison, sizes)
    ours, theirs = comparison.ours.build(sizes), comparison.theirs.build(sizes)
    image_bytes = sum(_bytes_per_image(module, comparison, sizes) for module in (ours, theirs))
    flops = 3 * sizes.batch * measure.flops(ours, *comparison.inputs(replace(sizes, batch=1)))[""]
    if comparison.copy_weights is None:
        return Agreement(None, None, image_bytes, flops)
    comparison.copy_weights(ours, theirs)
    free = measure.free_memory()
    # A batch that does not fit is not timed, so one image is enough.
    fits = free is None or image_bytes * sizes.batch < free
    inputs = comparison.inputs(sizes if fits else replace(sizes, batch=1))
    mine = _output_and_gradients(run_in(mode, ours), inputs)
    with comparison.without_extras():
        plain = _output_and_gradients(theirs, inputs)
    full = _output_and_gradients(theirs, inputs)
    return Agreement(_difference(mine, plain), _difference(mine, full), image_bytes, flops)


def _check_memory(comparison: Comparison, sizes: Sizes) -> None:
    """Raises an error if the tokens do not fit, before anything large is allocated. Extrapolates from few tokens.

    Only attention can fail this check: whole models derive their tokens from the images.
    """

    def needed(tokens: int) -> int:
        one = replace(sizes, batch=1, tokens=tokens)
        modules = (comparison.ours.build(one), comparison.theirs.build(one))
        return sum(peak_bytes(partial(_output_and_gradients, module, comparison.inputs(one))) for module in modules)

    small, large = PROBE_TOKENS
    if sizes.tokens > large:
        check_fits("tokens", sizes.tokens, fit_quadratic(small, needed(small), large, needed(large)))


def _output_and_gradients(module: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = module(*leaves)
    grad_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]


def _difference(mine: list[Tensor], theirs: list[Tensor]) -> float:
    """The larger of max|out - out'| / max|out'| and |grad - grad'| / |grad'|.

    Gradients are compared in norm, not by element. Of 10^8 features, a few lie so close to the kink of relu that
    rounding decides their slope. Single elements then differ even in correct code.
    """
    output = ((mine[0] - theirs[0]).abs().max() / theirs[0].abs().max()).item()
    gradients = (((a - b).norm() / b.norm()).item() for a, b in zip(mine[1:], theirs[1:], strict=True))
    return max(output, *gradients)


def _bytes_per_image(module: nn.Module, comparison: Comparison, sizes: Sizes) -> float:
    def peak(batch: int) -> int:
        return peak_bytes(partial(_output_and_gradients, module, comparison.inputs(replace(sizes, batch=batch))))

    return peak(2) - peak(1)


def run_in(mode: Mode, module: nn.Module) -> Callable[..., Tensor]:
    """The module as a function that runs in this mode."""
    modes: dict[Mode, Callable[[nn.Module], Callable[..., Tensor]]] = {
        "eager": lambda it: it,
        "compiled": torch.compile,
        "bf16": _in_bf16,
    }
    return modes[mode](module)


def _in_bf16(module: nn.Module) -> Callable[..., Tensor]:
    def forward(*inputs: Tensor) -> Tensor:
        with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
            return module(*inputs).float()

    return forward


def attention_call(inputs: Callable[[Sizes], tuple[Tensor, ...]]) -> MakeCall:
    """Returns a `make_call` for forward and backward, with gradients of the inputs and of all parameters."""

    def make(module: nn.Module, sizes: Sizes, mode: Mode) -> Call:
        leaves = [x.requires_grad_() for x in inputs(sizes)]
        targets = [*leaves, *module.parameters()]
        grad_out, attention = torch.randn_like(module(*leaves)), run_in(mode, module)
        return lambda: torch.autograd.grad(attention(*leaves), targets, grad_out, allow_unused=True)

    return make


def step_call(inputs: Callable[[Sizes], tuple[Tensor, ...]], optimizer: Callable[[nn.Module], Optimizer]) -> MakeCall:
    """Returns a `make_call` for a training step (loss, backward, optimizer) on one batch of images."""

    def make(module: nn.Module, sizes: Sizes, mode: Mode) -> Call:
        (images,), labels = inputs(sizes), torch.randint(CLASSES, (sizes.batch,))
        return partial(training_step, run_in(mode, module), optimizer(module), images, labels)

    return make


def our_adamw(module: nn.Module) -> Optimizer:
    """The optimizer of `favorit train`."""
    (optimizer,) = adamw(module, lr=LR, weight_decay=WEIGHT_DECAY)
    return optimizer


def default_adamw(module: nn.Module) -> Optimizer:
    """torch's AdamW in its default implementation: the peers define no optimizer."""
    return torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
