"""Models without values: what is wrong with a configuration shows in shapes alone, and millions of parameters cost
nothing.
"""

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

# Of nn.init those that ask a mode before they draw: what they call themselves is hidden from it.
_FILLS = (
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_uniform_,
    nn.init.trunc_normal_,
)


def outline(config: ModelConfig) -> ViT:
    """The model on the meta device; raises what building it would."""
    with torch.device("meta"), _Undrawn(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_model(config, seed=0)


def check_room(config: ModelConfig) -> None:
    """An error before anything is allocated, where the weights alone are more than what is free."""
    try:
        model = outline(config)
    except FavoritError:
        raise
    except (
        Exception
    ):  # a component of the user's that looks at values while it is built: whether it fits shows when it is
        return
    free, needed = measure.free_memory(), sum(tensor.nbytes for tensor in model.state_dict().values())
    if free is not None and needed > free:
        raise FavoritError(
            f"the weights of this model need {needed / 2**30:,.1f} GiB and {free / 2**30:.1f} are free: "
            f"choose a smaller model.dim ({config.dim}), model.mlp_dim ({config.mlp_dim}) or model.depth ({config.depth})"
        )


class _Undrawn(TorchFunctionMode):
    """No random numbers are drawn: where there is nothing to fill, torch takes ten times as long as for numbers, and
    loads its compiler.
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
