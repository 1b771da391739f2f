"""Optimizers and learning-rate schedules by name.

A schedule is a pure function of the epoch as a real number, so it has no state to save or restore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from favorit.config import TrainConfig
from favorit.errors import FavoritError
from favorit.spec import PositiveFloat, PositiveInt, Probability, Registry

OPTIMIZERS: Registry[list[Optimizer]] = Registry("optimizer", context=("model", "lr", "weight_decay", "fused"))
Schedule = Callable[[float, int], float]
SCHEDULES: Registry[Schedule] = Registry("schedule")


def build_optimizers(model: nn.Module, config: TrainConfig) -> list[Optimizer]:
    """The optimizers of a run; several if groups of parameters need different algorithms."""
    # A fused step unscales fp16 gradients itself, so they could not be clipped before it.
    fused = config.precision != "fp16"
    built = OPTIMIZERS.build(config.optimizer, model=model, lr=config.lr, weight_decay=config.weight_decay, fused=fused)
    if len(built) > 1 and not fused:
        raise FavoritError(
            f"optimizer={config.optimizer!r} is not valid with train.precision=fp16: it needs several gradient scalers"
        )
    return built


def _groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: weight decay for matrices, none for biases, norms and scalars."""
    trainable = [p for p in parameters if p.requires_grad]
    matrices, others = [p for p in trainable if p.ndim >= 2], [p for p in trainable if p.ndim < 2]
    groups = ({"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


@OPTIMIZERS.register("adamw")
def adamw(
    model: nn.Module,
    lr: float,
    weight_decay: float,
    fused: bool = True,
    beta1: Probability = 0.9,
    beta2: Probability = 0.999,
) -> list[Optimizer]:
    """Adam with decoupled weight decay.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, arXiv 1711.05101.
    """
    return [torch.optim.AdamW(_groups(model.parameters(), weight_decay), lr=lr, betas=(beta1, beta2), fused=fused)]


@OPTIMIZERS.register("adam")
def adam(
    model: nn.Module,
    lr: float,
    weight_decay: float,
    fused: bool = True,
    beta1: Probability = 0.9,
    beta2: Probability = 0.999,
) -> list[Optimizer]:
    """Adam; weight decay is added to the gradient.

    Source: Kingma and Ba 2015, Adam: A Method for Stochastic Optimization, arXiv 1412.6980.
    """
    return [torch.optim.Adam(_groups(model.parameters(), weight_decay), lr=lr, betas=(beta1, beta2), fused=fused)]


@OPTIMIZERS.register("sgd")
def sgd(
    model: nn.Module, lr: float, weight_decay: float, momentum: Probability = 0.9, nesterov: bool = False
) -> list[Optimizer]:
    """Stochastic gradient descent with momentum.

    Source: Polyak 1964, Some methods of speeding up the convergence of iteration methods.
    """
    if nesterov and not momentum:
        raise FavoritError("sgd: nesterov=True needs momentum above 0")
    groups = _groups(model.parameters(), weight_decay)
    return [torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)]


@OPTIMIZERS.register("muon")
def muon(
    model: nn.Module, lr: float, weight_decay: float, fused: bool = True, momentum: Probability = 0.95
) -> list[Optimizer]:
    """Muon for the matrices of the blocks, with updates scaled to match AdamW's; AdamW for all other parameters.

    Source: Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks (a blog post); scaled as in Liu
    et al. 2025, Muon is Scalable for LLM Training, arXiv 2502.16982.
    """
    blocks = {id(p) for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2}
    inside = [p for p in model.parameters() if id(p) in blocks and p.requires_grad]
    outside = [p for p in model.parameters() if id(p) not in blocks]
    return [
        torch.optim.Muon(inside, lr=lr, weight_decay=weight_decay, momentum=momentum, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(_groups(outside, weight_decay), lr=lr, fused=fused),
    ]


def learning_rate_factor(config: TrainConfig, step: int, steps: int) -> float:
    """The factor on each base learning rate at `step`, with `steps` steps in an epoch: linear warmup times schedule."""
    warmup = min((step + 1) / (config.warmup * steps), 1.0) if config.warmup else 1.0
    return warmup * SCHEDULES.build(config.schedule)(step / steps, config.epochs)


@SCHEDULES.register("constant")
def constant() -> Schedule:
    """factor = 1.

    Source: common practice.
    """
    return lambda epoch, epochs: 1.0


@SCHEDULES.register("cosine")
def cosine(final: Probability = 0.0) -> Schedule:
    """factor = final + (1 - final) (1 + cos(pi epoch / epochs)) / 2.

    Source: Loshchilov and Hutter 2017, SGDR, arXiv 1608.03983, without restarts.
    """
    return lambda epoch, epochs: final + (1 - final) * (1 + math.cos(math.pi * min(epoch / epochs, 1.0))) / 2


@SCHEDULES.register("step")
def step(every: PositiveInt = 5, factor: PositiveFloat = 0.5) -> Schedule:
    """rate = factor^(floor(epoch / every)).

    Source: common practice; torch's StepLR.
    """
    return lambda epoch, epochs: factor ** math.floor(epoch / every)


@SCHEDULES.register("one_cycle")
def one_cycle(peak: Probability = 0.3, start: PositiveFloat = 25.0, end: PositiveFloat = 1e4) -> Schedule:
    """A cosine from 1/start up to 1 at fraction `peak` of the run, then a cosine down to 1/(start end).

    Source: Smith and Topin 2018, Super-Convergence, arXiv 1708.07120; shaped as torch's OneCycleLR.
    """

    def factor(epoch: float, epochs: int) -> float:
        progress = min(epoch / epochs, 1.0)
        if progress < peak:
            return _cosine_between(1 / start, 1.0, progress / peak)
        return _cosine_between(1.0, 1 / (start * end), (progress - peak) / (1 - peak))

    return factor


def _cosine_between(first: float, last: float, fraction: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * fraction)) / 2
