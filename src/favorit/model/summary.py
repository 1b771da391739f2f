"""A model as a table: layer, what it is, output shape, parameters, FLOPs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from favorit import measure
from favorit.attention import Mixer
from favorit.model.block import DropPath
from favorit.model.layout import layers
from favorit.model.vit import ViT
from favorit.position import Position, Relative, acts_on_qk

# These change nothing in evaluation and have no row.
SILENT = (nn.Dropout, nn.Identity, DropPath)


@dataclass(frozen=True)
class Row:
    """One part of a model. The shape is without the batch; FLOPs are those of one image.

    `trainable` counts the parameters that training changes. `parts` are the modules it consists of, in the order of
    their calls, where there are several: norms, projections, the mixer. Their parameters and FLOPs add up to its own.
    """

    layer: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    trainable: int
    flops: int
    parts: tuple[Row, ...] = ()


def summarise(model: ViT) -> list[Row]:
    """The parts of a model in the order an image passes them; parameters add up to the model's.

    The FLOPs of a mixer are those of its attention layer without the projections that are called. In a last block whose
    head reads the class token, keys and values may be projected by the mixer itself.
    """
    image = next(model.parameters()).new_zeros(1, model.config.channels, *model.config.image_size)
    training = model.training
    try:
        # First, without hooks: a hook inside an attention layer changes the path that the last block takes.
        counts = measure.flops(model.eval(), image)
        shapes = _shapes(model, image)
    finally:
        model.train(training)
    rows = [_row(model.get_submodule(path), path, kind, shapes, counts) for path, kind in _layers(model)]
    # The class token and the position table have no call of their own: they act between the stem and the first block.
    parameters, trainable = _sizes(model)
    parameters -= sum(row.parameters for row in rows)
    trainable -= sum(row.trainable for row in rows)
    tokens = (model.head.prefix + rows[0].shape[0], rows[0].shape[1])
    rows.insert(1, Row("position", model.config.position, tokens, parameters, trainable, 0))
    return rows


def _layers(model: ViT) -> Iterator[tuple[str, str]]:
    """The path and the description of each layer."""
    config = model.config
    yield "stem", config.stem
    for index, mixer in enumerate(layers(config.layout, config.performer, config.depth)):
        yield f"blocks.{index}.attention", str(mixer)
        if config.mlp_dim:
            yield f"blocks.{index}.feed_forward", f"{config.dim} -> {config.mlp_dim} -> {config.dim}, {config.act}"
    yield "head", config.head


def _shapes(model: ViT, image: Tensor) -> dict[str, tuple[int, ...]]:
    """The output shape of each module by path, in the order of their first calls."""
    shapes: dict[str, tuple[int, ...]] = {}

    def remember(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor | tuple[Tensor, Any]) -> None:
            tokens = output if isinstance(output, Tensor) else output[0]
            shapes.setdefault(path, tuple(tokens.shape[1:]))

        return hook

    hooks = [module.register_forward_hook(remember(path)) for path, module in model.named_modules()]
    try:
        with torch.no_grad():
            model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def _row(layer: nn.Module, path: str, kind: str, shapes: dict[str, tuple[int, ...]], counts: dict[str, int]) -> Row:
    flops = counts.get(path, 0)
    return Row(path, kind, shapes[path], *_sizes(layer), flops, _parts(layer, path, kind, flops, shapes, counts))


def _parts(
    layer: nn.Module, path: str, kind: str, flops: int, shapes: dict[str, tuple[int, ...]], counts: dict[str, int]
) -> tuple[Row, ...]:
    """None where there is only one, or where one with parameters is never called, so that its shape is not known."""
    calls = list(shapes)
    leaves = [(place, _call(place, module), module) for place, module in _leaves(layer, path)]
    if any(call not in shapes and _sizes(module)[0] for _, call, module in leaves):
        return ()
    called = sorted((leaf for leaf in leaves if leaf[1] in shapes), key=lambda leaf: calls.index(leaf[1]))
    others = sum(counts.get(place, 0) for place, _, module in called if not isinstance(module, Mixer))
    rows = []
    for place, call, module in called:
        spent = flops - others if isinstance(module, Mixer) else counts.get(place, 0)
        rows.append(Row(place, _kind(module, kind), shapes[call], *_sizes(module), spent))
    return tuple(rows) if len(rows) > 1 else ()


def _leaves(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules that compute something themselves; a mixer and a position count as one module each."""
    if isinstance(module, SILENT) or (isinstance(module, Position) and not acts_on_qk(module)):
        return
    children = list(module.named_children())
    if not children or isinstance(module, Mixer | Position) or any(True for _ in module.parameters(recurse=False)):
        yield path, module
        return
    for name, child in children:
        yield from _leaves(child, f"{path}.{name}")


def _call(path: str, module: nn.Module) -> str:
    """The module whose output has its shape: a position has no call of its own and acts on q and k after their
    norms.
    """
    return f"{path.rpartition('.')[0]}.norm_k" if isinstance(module, Position) else path


def _kind(module: nn.Module, kind: str) -> str:
    if isinstance(module, Position):
        return "+".join(type(part).__name__ for part in module.modules() if isinstance(part, Relative))
    return kind if isinstance(module, Mixer) else type(module).__name__


def _sizes(module: nn.Module) -> tuple[int, int]:
    """All parameters, and those that training changes."""
    return sum(p.numel() for p in module.parameters()), measure.parameters(module)
