"""Models without values: what is wrong with a configuration shows in shapes alone, and millions of parameters cost nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from favorit.config import ModelConfig
from favorit.model import create_model

_FILLS = (Tensor.normal_, Tensor.uniform_)


def check_model(config: ModelConfig) -> None:
    """Raises what building the model would."""
    with torch.device("meta"), _Undrawn(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        create_model(config, seed=0)


class _Undrawn(TorchFunctionMode):
    """No random numbers are drawn: where there is nothing to fill, torch takes ten times as long as for numbers, and loads its compiler."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in _FILLS:
            return args[0]
        if function is torch.randn:
            return torch.empty(*args, **{key: value for key, value in (kwargs or {}).items() if key != "generator"})
        return function(*args, **(kwargs or {}))
