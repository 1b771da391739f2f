"""The registry of kernels. Each kernel is also registered as a mixer: linear attention over that kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from favorit.allocation import within_memory
from favorit.attention.kernels.contract import Kernel
from favorit.attention.linear import Linear
from favorit.attention.mixer import MIXERS
from favorit.errors import FavoritError
from favorit.spec import Registry, parameters_of

KERNELS: Registry[Kernel] = Registry("kernel", context=("head_dim", "layer", "seed"), within=within_memory)


def add_kernel(name: str, builder: Callable[..., Kernel], parameters: dict[str, Any] | None = None) -> None:
    """Registers a kernel, and linear attention over it as a mixer of the same name: `relu(m=64, causal=True)`."""
    KERNELS.add(name, builder, parameters)
    entry = KERNELS[name]
    mixer_parameters = parameters_of(Linear, ("self", "kernel"))
    if clash := mixer_parameters.keys() & entry.parameters.keys():
        raise FavoritError(
            f"kernel {name!r}: parameter {', '.join(sorted(clash))} is also a parameter of the mixer; rename it"
        )

    def build(**values: Any) -> Linear:
        kernel_values = {key: values[key] for key in (*entry.parameters, *entry.context) if key in values}
        mixer_values = {key: values[key] for key in mixer_parameters if key in values}
        built = entry.builder(**kernel_values)
        if not isinstance(getattr(built, "features", None), int):
            raise FavoritError(f"kernel {name!r} has no number of features: set self.features in its __init__")
        return Linear(built, **mixer_values)

    build.__doc__ = builder.__doc__
    MIXERS.add(name, build, {**entry.parameters, **mixer_parameters})


def kernel(name: str) -> Callable[[type[Kernel]], type[Kernel]]:
    """Class decorator: registers a kernel under a name."""
    if not isinstance(name, str):
        raise FavoritError(f"@kernel needs a name: write @kernel('my_kernel'), not {name!r}")

    def decorate(cls: type[Kernel]) -> type[Kernel]:
        if not (inspect.isclass(cls) and issubclass(cls, Kernel)):
            raise FavoritError(f"kernel {name!r} must be a subclass of Kernel, not {cls!r}: see docs/extending.md")
        if lacking := sorted(cls.__abstractmethods__):
            raise FavoritError(
                f"kernel {name!r} has no {' and no '.join(lacking)}: define {', '.join(lacking)}(self, x)"
            )
        add_kernel(name, cls)
        return cls

    return decorate
