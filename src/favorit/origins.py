"""Where components come from: favorit, a file of the user's, or a notebook. Registries record it for each component."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import CodeType, ModuleType
from typing import Any

from favorit.remembered import remember
from favorit.source import Source

MAIN = ("__main__", "__mp_main__")  # the second name is that of a script in a process of multiprocessing


@dataclass(frozen=True)
class Origin:
    """The module whose execution registered a component. `code` was executed at `line`. `source` is the module's file;
    None for favorit's own modules and for notebooks.
    """

    module: str
    code: CodeType | None = None
    line: int = 0
    source: Source | None = None

    @classmethod
    def of(cls, variables: Mapping[str, Any], code: CodeType, line: int) -> Origin:
        """The module with these global variables."""
        origin = cls(str(variables.get("__name__", "")), code, line)
        return origin if origin.is_built_in else replace(origin, source=Source.of_module(variables))

    @property
    def is_built_in(self) -> bool:
        return self.module.partition(".")[0] == "favorit"

    @property
    def is_importable(self) -> bool:
        """True if importing the file registers the component and does nothing else. Importing a script would run it
        again, except for the part below `if __name__ == "__main__":`.
        """
        if self.source is None:
            return False
        if self.module not in MAIN:
            return True
        parts = _main_parts(self.source.content)
        return bool(parts) and not any(self.line in part for part in parts)

    @property
    def place(self) -> str:
        """The place as text for an error."""
        if self.is_built_in:
            return "favorit"
        return "a notebook or interactive session" if self.source is None else self.source.path

    def repeats(self, other: Origin) -> bool:
        """True if this is another execution of the same file, or of a notebook: it may register its names again."""
        if self.is_built_in or other.is_built_in or self.code is other.code:
            return False
        return os.path.realpath(self.place) == os.path.realpath(other.place)


_files: dict[str, Source] = {}  # by path


def registering() -> Origin:
    """The origin of the component that is being registered: the innermost module that is being executed."""
    frame = inspect.currentframe()
    while frame is not None:
        # Code of a function is optimized. Code of a class body has its own local variables.
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_locals is frame.f_globals:
            return Origin.of(frame.f_globals, frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return Origin("")


def import_file(path: str | os.PathLike[str]) -> ModuleType:
    """The module of a Python file at the user's request. Registers its components, and remembers the file."""
    source = Source.read(os.fspath(path))
    module = source.load()
    _files[os.path.abspath(path)] = source = source.gather()
    remember(source)
    return module


def imported_files() -> list[Source]:
    """The files that `import_file` has imported."""
    return list(_files.values())


def _main_parts(content: bytes) -> list[range]:
    """The lines of `if __name__ == "__main__":` at the top level of a script."""
    try:
        statements = ast.parse(content).body
    except (SyntaxError, ValueError):
        return []
    branches = [each for each in statements if isinstance(each, ast.If)]
    found = [each for each in branches if ast.unparse(each.test) == "__name__ == '__main__'"]
    return [range(each.lineno, (each.end_lineno or each.lineno) + 1) for each in found]
