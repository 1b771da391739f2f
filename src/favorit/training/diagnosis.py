"""Where in a model numbers stop being finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from favorit.training.evaluation import Precision


def diagnose(model: nn.Module, images: Tensor, precision: Precision) -> str:
    """The first layer that gives something else than numbers for these images, and the size of what each part of the
    model gives.

    Gradients would not tell: those of a loss that is no number are none either, in every layer. A layer that is looked
    at makes all of q, k and v, also where training saves them.
    """
    sizes, broken = _watch(model, images, precision)
    ruined = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    if broken is None:
        where = "every layer gives finite numbers"
    elif ruined:
        where = f"weights that are not finite: {len(ruined)} of {len(list(model.parameters()))} tensors, the first {ruined[0]}"
    else:
        where = f"the first layer with an output that is not finite: {broken}"
    return f"{where}; root mean squares: {', '.join(f'{name} {size:.3g}' for name, size in sizes.items())}"


def _watch(model: nn.Module, images: Tensor, precision: Precision) -> tuple[dict[str, float], str | None]:
    """The sizes of the outputs of stem, blocks and head in the order of their calls, and the first broken layer within
    them.
    """
    sizes: dict[str, float] = {}
    broken: list[str] = []

    def watched(name: str, module: nn.Module) -> Any:
        def look(_module: nn.Module, _given: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if name in ("stem", "head") or name.removeprefix("blocks.").isdigit():
                sizes[name] = float(value.detach().float().square().mean().sqrt())
            if not any(module.children()) and not value.isfinite().all():
                broken.append(name)

        return module.register_forward_hook(look)

    hooks = [watched(name, module) for name, module in model.named_modules() if name]
    training = model.training
    try:
        with torch.no_grad(), precision():
            model.eval()(images)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return sizes, broken[0] if broken else None
