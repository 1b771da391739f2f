"""The Vision Transformer that every configuration builds.

Shapes: B batch, K image channels, N tokens, C model width.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from favorit import seeds
from favorit.allocation import within_memory
from favorit.attention import Attention, Kernel, build_mixer
from favorit.config import ModelConfig
from favorit.errors import FavoritError
from favorit.grids import Grid
from favorit.model.block import Block
from favorit.model.head import HEADS
from favorit.model.layout import layers
from favorit.model.presets import preset
from favorit.model.stem import STEMS
from favorit.position import Absolute, QueryKeyPosition, build_position
from favorit.tensors import check_tensor


class ViT(nn.Module):
    """Images (B,K,rows,columns) -> logits (B,classes): stem, class token, absolute position, blocks, head.

    `config` is the configuration of the model. Images of another size are accepted if stem, mixers and head support
    them; `resized` returns a copy for that size.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            raise FavoritError(f"ViT needs a ModelConfig, not {config!r}: create_model(...) builds presets")
        self.config = config
        mixers = layers(config.layout, config.performer, config.depth)
        self.stem = STEMS.build(
            config.stem, image_channels=config.channels, dim=config.dim, image_size=config.image_size
        )
        grid = self.stem.grid(config.image_size)
        tokens = grid[0] * grid[1]
        self.head = HEADS.build(
            config.head, dim=config.dim, classes=config.classes, tokens=tokens, dropout=config.dropout
        )
        prefix = self.head.prefix
        self.class_token = nn.Parameter(torch.empty(prefix, config.dim)) if prefix else None
        head_dim = config.head_dim or config.dim // config.heads
        context: dict[str, Any] = dict(
            dim=config.dim, heads=config.heads, head_dim=head_dim, grid=grid, prefix=prefix, seed=seed
        )
        self.position = build_position(config.position, **context, only=Absolute)
        self.dropout = nn.Dropout(config.emb_dropout)
        self.blocks = nn.ModuleList()
        for layer, spec in enumerate(mixers):
            mixer = build_mixer(
                spec,
                heads=config.heads,
                head_dim=head_dim,
                tokens=prefix + tokens,
                prefix=prefix,
                layer=layer,
                seed=seed,
            )
            attention = Attention(
                config.dim,
                config.heads,
                mixer,
                build_position(config.position, **context, layer=layer, only=QueryKeyPosition),
                config.head_dim,
                config.qkv_bias,
                config.out_bias,
                config.qk_norm,
                config.local,
                prefix=prefix,
            )
            # Stochastic depth grows from 0 in the first layer to its full rate in the last.
            drop_path = config.drop_path * layer / max(config.depth - 1, 1)
            self.blocks.append(
                Block(attention, config.dim, config.mlp_dim, config.norm, config.act, config.dropout, drop_path)
            )
        self.tokens = prefix + tokens
        if self.tokens == 1:
            warnings.warn(
                f"stem {config.stem!r} makes a single token: attention has nothing to attend to, "
                "so the choice of the mixer does not matter",
                stacklevel=3,
            )
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images, self.head.reads))

    def features(self, images: Tensor, num_queries: int | None = None) -> Tensor:
        """(B, prefix + N, C): the tokens after the last block, or the first `num_queries` of them."""
        weight = next(self.stem.parameters(), None)
        hint = ": favorit.load(run).predict(...) takes files and raw images"
        check_tensor("images", images, ("B", self.config.channels, "H", "W"), weight=weight, hint=hint)
        x, grid = self.stem(images)
        prefix = self.head.prefix
        if self.class_token is not None:
            x = torch.cat([self.class_token.to(x.dtype).expand(x.shape[0], -1, -1), x], 1)
        x = self.dropout(self.position.tokens(x, grid, prefix))
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, grid, prefix)
        return last(x, grid, prefix, num_queries)

    def resized(self, image_size: int | Grid) -> ViT:
        """A copy for another image size: parameters that depend on the token grid are interpolated."""
        old = self.stem.grid(self.config.image_size)
        model = copy.deepcopy(self)
        model.config = self.config.replace(image_size=image_size)
        new = model.stem.grid(model.config.image_size)
        model.position.resize(new)
        for module in model.modules():
            if isinstance(module, Attention):
                module.position.resize(new)
                module.mixer.resize(old, new)
        return model

    def kernels(self) -> Iterator[tuple[int, Kernel]]:
        """(layer index, kernel) for each kernel."""
        for layer, block in enumerate(self.blocks):
            for module in block.modules():
                if isinstance(module, Kernel):
                    yield layer, module

    def attention_implementations(self, batch: int) -> list[str]:
        """The attention implementation that each layer uses for a training batch of this size."""
        *others, last = [module for module in self.modules() if isinstance(module, Attention)]
        return [
            *(layer.explain(batch, self.tokens) for layer in others),
            last.explain(batch, self.tokens, self.head.reads),
        ]

    def redraw(self, index: int) -> None:
        """Redraws the random features of all layers; does nothing in evaluation mode."""
        for _, kernel in self.kernels():
            kernel.redraw(index)

    def scalars(self) -> dict[str, float]:
        """The learned scalars of all kernels by name: `blocks.0.a` is the mixture parameter of the first layer."""
        return {
            f"blocks.{layer}.{name}": value
            for layer, kernel in self.kernels()
            for name, value in kernel.scalars().items()
        }


def initialize(model: nn.Module) -> None:
    """Initializes all weights of a model.

    | parameters                               | initial values                                    |
    |------------------------------------------|---------------------------------------------------|
    | linear layers (also inside kernels)      | Xavier uniform, biases 0                          |
    | convolutions with kernel size = stride   | Xavier uniform, biases 0                          |
    | (the patch projection)                   |                                                   |
    | other convolutions (stems, dwconv)       | Kaiming normal (fan out), biases 0                |
    | class token                              | normal, standard deviation 0.02                   |
    | layer norms                              | weights 1, biases 0                               |
    | position tables, gates,                  | set by their own class                            |
    | linformer projections,                   |                                                   |
    | rows of pointwise and random kernels     |                                                   |
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Conv2d) and module.kernel_size == module.stride:
            nn.init.xavier_uniform_(module.weight.view(module.out_channels, -1))
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    class_token = getattr(model, "class_token", None)
    if class_token is not None:
        nn.init.normal_(class_token, std=0.02)


def create_model(preset_or_config: str | ModelConfig, *, seed: int | None = None, **overrides: Any) -> ViT:
    """The model of a preset or configuration, with fields overridden.

    Args:
        preset_or_config: The name of a preset (`favorit list presets`), or a ModelConfig.
        seed: The same seed gives the same model. Without a seed, one is drawn from torch's global generator, so
            `torch.manual_seed` determines the model.
        overrides: Fields of ModelConfig: `layout`, `performer`, `position`, `image_size`, `classes`, `dim`, ...

    Example:
        model = favorit.create_model("vit-64", layout="performer_first", performer="relu(m=128)", classes=100)
    """
    config = preset(preset_or_config) if isinstance(preset_or_config, str) else preset_or_config
    if not isinstance(config, ModelConfig):
        raise FavoritError(f"create_model needs the name of a preset or a ModelConfig, not {type(config).__name__}")
    seed = seeds.chosen(seed)
    with seeds.global_stream(seed, "init"), within_memory("this model"):
        return ViT(config.replace(**overrides), seed)
