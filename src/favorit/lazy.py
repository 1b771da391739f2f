"""Names of a package that are imported when they are first used, so that light parts of it load without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: name -> the module that defines it."""

    def __getattr__(name: str) -> Any:  # noqa: N807  # it becomes the package's
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return __getattr__
