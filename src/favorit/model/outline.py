"""Models on the meta device, which have shapes but no values: they check a configuration without allocating memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from favorit import measure
from favorit.config import ModelConfig
from favorit.errors import FavoritError
from favorit.model.vit import ViT, create_model

# Functions that fill a tensor with random values, as far as a TorchFunctionMode sees them. It sees a call of one of the
# nn.init functions listed here, but not the Tensor methods that this function calls. For other nn.init functions, it
# sees the Tensor method that they call.
_FILLS = (
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_uniform_,
    nn.init.trunc_normal_,
)


def outline(config: ModelConfig) -> ViT:
    """The model on the meta device. Raises the same errors as building the model."""
    with torch.device("meta"), _SkipInit(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_model(config, seed=0)


def check_memory(config: ModelConfig) -> None:
    """Raises an error, before anything is allocated, if the weights alone exceed the free memory."""
    try:
        model = outline(config)
    except FavoritError:
        raise
    except Exception:  # a user's component may read values while it is built, which the meta device does not allow
        return
    free, needed = measure.free_memory(), sum(tensor.nbytes for tensor in model.state_dict().values())
    if free is not None and needed > free:
        fields = f"model.dim ({config.dim}), model.mlp_dim ({config.mlp_dim}) or model.depth ({config.depth})"
        raise FavoritError(
            f"the weights of this model need {needed / 2**30:,.1f} GiB and {free / 2**30:.1f} are free: reduce {fields}"
        )


class _SkipInit(TorchFunctionMode):
    """Skips random initialization. On the meta device, torch would import its compiler for it and take ten times as
    long.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _FILLS:
            return args[0] if args else (kwargs or {})["tensor"]
        if function is torch.randn:
            return torch.empty(*args, **{key: value for key, value in (kwargs or {}).items() if key != "generator"})
        return function(*args, **(kwargs or {}))
