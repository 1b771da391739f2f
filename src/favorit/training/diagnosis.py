"""Finds the first layer of a model with a non-finite output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from favorit.errors import FavoritError
from favorit.training.evaluation import AutocastFactory


class DivergedError(FavoritError):
    """The loss or the logits are NaN or infinite."""


def diagnose(model: nn.Module, images: Tensor, precision: AutocastFactory) -> str:
    """One line: the first layer with a non-finite output for these images, or the first non-finite weights, and the
    root mean squares of the outputs of stem, blocks and head.

    Gradients would not show the layer: if the loss is NaN, they are NaN in every layer.
    """
    sizes, broken = _forward_sizes(model, images, precision)
    ruined = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    if broken is None:
        where = "all layer outputs are finite"
    elif ruined:
        where = f"non-finite weights in {len(ruined)} of {len(list(model.parameters()))} tensors, first in {ruined[0]}"
    else:
        where = f"first layer with a non-finite output: {broken}"
    return f"{where}; root mean squares: {', '.join(f'{name} {size:.3g}' for name, size in sizes.items())}"


def _forward_sizes(model: nn.Module, images: Tensor, precision: AutocastFactory) -> tuple[dict[str, float], str | None]:
    """(root mean squares of the outputs of stem, blocks and head, first layer with a non-finite output)."""
    sizes: dict[str, float] = {}
    broken: list[str] = []

    def register(name: str, module: nn.Module) -> Any:
        # A hooked attention layer projects q, k and v even where training skips the projection of keys or values.
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if name in ("stem", "head") or name.removeprefix("blocks.").isdigit():
                sizes[name] = float(value.detach().float().square().mean().sqrt())
            if not any(module.children()) and not value.isfinite().all():
                broken.append(name)

        return module.register_forward_hook(hook)

    hooks = [register(name, module) for name, module in model.named_modules() if name]
    training = model.training
    try:
        with torch.no_grad(), precision():
            model.eval()(images)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return sizes, broken[0] if broken else None
