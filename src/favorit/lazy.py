"""Lazy imports: a package imports a name when it is first used, so that `favorit --help` does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package. `homes` maps each name to the module that defines it, a module to itself."""

    def __getattr__(name: str) -> Any:  # noqa: N807  # the package's own __getattr__
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return __getattr__
