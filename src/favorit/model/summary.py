"""A model as a table: layer, kind, output shape, parameters, FLOPs."""

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
from favorit.position import Position, QueryKeyPosition, acts_on_qk

# Modules without a row, because they are identities in evaluation mode.
SILENT = (nn.Dropout, nn.Identity, DropPath)


@dataclass(frozen=True)
class Row:
    """One layer of a model. `shape` omits the batch dimension; `flops` is for one image.

    `trainable` is the number of trainable parameters. `parts` are the modules of the layer in call order: norms,
    projections, the mixer. Their parameters and FLOPs add up to those of the layer. A layer of one module has no parts.
    """

    layer: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    trainable: int
    flops: int
    parts: tuple[Row, ...] = ()


def summarize(model: ViT) -> list[Row]:
    """The layers of a model in the order of the forward pass; parameters add up to the model's.

    The FLOPs of a mixer are those of its attention layer minus those of the other modules called. In the last block, if
    the head uses only the class token, the mixer may project keys and values itself; the FLOPs of these projections are
    then part of the mixer's.
    """
    image = next(model.parameters()).new_zeros(1, model.config.channels, *model.config.image_size)
    training = model.training
    try:
        # Count FLOPs before hooks are registered: hooks in an attention layer change the implementation of its read.
        counts = measure.flops(model.eval(), image)
        shapes = _shapes(model, image)
    finally:
        model.train(training)
    rows = [_row(model.get_submodule(path), path, kind, shapes, counts) for path, kind in _layers(model)]
    # The class token and the position table are not called as modules: they act between the stem and the first block.
    parameters, trainable = _sizes(model)
    parameters -= sum(row.parameters for row in rows)
    trainable -= sum(row.trainable for row in rows)
    tokens = (model.head.prefix + rows[0].shape[0], rows[0].shape[1])
    rows.insert(1, Row("position", model.config.position, tokens, parameters, trainable, 0))
    return rows


def _layers(model: ViT) -> Iterator[tuple[str, str]]:
    """(path, kind) of each layer."""
    config = model.config
    yield "stem", config.stem
    for index, mixer in enumerate(layers(config.layout, config.performer, config.depth)):
        yield f"blocks.{index}.attention", str(mixer)
        if config.mlp_dim:
            yield f"blocks.{index}.feed_forward", f"{config.dim} -> {config.mlp_dim} -> {config.dim}, {config.act}"
    yield "head", config.head


def _shapes(model: ViT, image: Tensor) -> dict[str, tuple[int, ...]]:
    """The output shape of each module by path, in order of first call."""
    shapes: dict[str, tuple[int, ...]] = {}

    def record_shape(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor | tuple[Tensor, Any]) -> None:
            tokens = output if isinstance(output, Tensor) else output[0]
            shapes.setdefault(path, tuple(tokens.shape[1:]))

        return hook

    hooks = [module.register_forward_hook(record_shape(path)) for path, module in model.named_modules()]
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
    """One row for each module of a layer.

    Empty if the layer has only one module, or if a module with parameters is never called, so its shape is unknown.
    """
    calls = list(shapes)
    leaves = [(leaf, _call(leaf, module), module) for leaf, module in _leaves(layer, path)]
    if any(call not in shapes and _sizes(module)[0] for _, call, module in leaves):
        return ()
    called = sorted((leaf for leaf in leaves if leaf[1] in shapes), key=lambda leaf: calls.index(leaf[1]))
    others = sum(counts.get(leaf, 0) for leaf, _, module in called if not isinstance(module, Mixer))
    rows = []
    for leaf, call, module in called:
        own = flops - others if isinstance(module, Mixer) else counts.get(leaf, 0)
        rows.append(Row(leaf, _kind(module, kind), shapes[call], *_sizes(module), own))
    return tuple(rows) if len(rows) > 1 else ()


def _leaves(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """(path, module) of each module that computes something itself; a mixer or a position counts as one module."""
    if isinstance(module, SILENT) or (isinstance(module, Position) and not acts_on_qk(module)):
        return
    children = list(module.named_children())
    if not children or isinstance(module, Mixer | Position) or any(True for _ in module.parameters(recurse=False)):
        yield path, module
        return
    for name, child in children:
        yield from _leaves(child, f"{path}.{name}")


def _call(path: str, module: nn.Module) -> str:
    """The path of the module whose call shows the output shape of this module, and its place in the call order.

    A position is not called as a module. It acts on the outputs of `norm_q` and `norm_k` and keeps their shape.
    """
    return f"{path.rpartition('.')[0]}.norm_k" if isinstance(module, Position) else path


def _kind(module: nn.Module, kind: str) -> str:
    if isinstance(module, Position):
        return "+".join(type(part).__name__ for part in module.modules() if isinstance(part, QueryKeyPosition))
    return kind if isinstance(module, Mixer) else type(module).__name__


def _sizes(module: nn.Module) -> tuple[int, int]:
    """(all parameters, trainable parameters)."""
    return sum(p.numel() for p in module.parameters()), measure.parameters(module)
