"""A model as a table: layer, what it is, output shape, parameters, FLOPs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from favorit import measure
from favorit.model.layout import layers
from favorit.model.vit import ViT


@dataclass(frozen=True)
class Row:
    """One part of a model. The shape is without the batch; FLOPs are those of one image."""

    layer: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    flops: int


def summarise(model: ViT) -> list[Row]:
    """The parts of a model in the order an image passes them; parameters add up to the model's."""
    shapes: dict[str, tuple[int, ...]] = {}

    def remember(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor | tuple[Tensor, Any]) -> None:
            tokens = output if isinstance(output, Tensor) else output[0]
            shapes[path] = tuple(tokens.shape[1:])

        return hook

    parts = list(_parts(model))
    hooks = [model.get_submodule(path).register_forward_hook(remember(path)) for path, _ in parts]
    image = next(model.parameters()).new_zeros(1, model.config.channels, *model.config.image_size)
    training = model.training
    try:
        counts = measure.flops(model.eval(), image)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    rows = [Row(path, kind, shapes[path], measure.parameters(model.get_submodule(path)), counts.get(path, 0)) for path, kind in parts]
    # The class token and the position table have no call of their own: they act between the stem and the first block.
    before = measure.parameters(model) - sum(row.parameters for row in rows)
    tokens = (model.head.prefix + rows[0].shape[0], rows[0].shape[1])
    rows.insert(1, Row("position", model.config.position, tokens, before, 0))
    return rows


def _parts(model: ViT) -> Iterator[tuple[str, str]]:
    config = model.config
    yield "stem", config.stem
    for index, mixer in enumerate(layers(config.layout, config.performer, config.depth)):
        yield f"blocks.{index}.attention", str(mixer)
        if config.mlp_dim:
            yield f"blocks.{index}.feed_forward", f"{config.dim} -> {config.mlp_dim} -> {config.dim}, {config.act}"
    yield "head", config.head
