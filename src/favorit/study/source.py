"""A study file: a Python file with STUDY = Study(...), which may also register components.

Workers and nodes must import the file to know these components. A node may not have the file, so its content is sent.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from favorit.errors import FavoritError

_imported: dict[str, tuple[bytes, ModuleType]] = {}  # by path, because a process can register a component only once


@dataclass(frozen=True)
class Source:
    """The content of the study file at `path`. `neighbors` has the modules that it imports from its own folder, as
    (relative path, content).
    """

    path: str
    content: bytes
    neighbors: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def read(cls, path: str | Path) -> Source:
        try:
            return cls(str(path), Path(path).read_bytes())
        except OSError as error:
            raise FavoritError(f"study file {path}: {(error.strerror or str(error)).lower()}") from None

    def load(self) -> ModuleType:
        """The file's module. Imports it unless this process has imported this content or runs the file as a script."""
        path = os.path.abspath(self.path)
        content, module = _imported.get(path) or (self.content, _find(path))
        if module is None or content != self.content:
            module = self._execute(path)
        _imported[path] = self.content, module
        return module

    def gather(self) -> Source:
        """A copy with the modules that the file has imported from its own folder."""
        folder = os.path.dirname(os.path.realpath(self.path))
        stems = {name.replace(".", os.sep): _file(module) for name, module in list(sys.modules.items())}
        files = [(f"{stem}{end}", file) for stem, file in stems.items() for end in (".py", f"{os.sep}__init__.py")]
        return replace(
            self,
            neighbors=tuple(
                (name, Path(file).read_bytes()) for name, file in files if file == os.path.join(folder, name)
            ),
        )

    def _execute(self, path: str) -> ModuleType:
        module = ModuleType(f"favorit_study_{Path(path).stem}")
        module.__file__ = path
        sys.modules[module.__name__] = module  # dataclasses look up their module there
        try:
            with self._neighbors(os.path.dirname(path)) as folder:
                sys.path.insert(0, folder)  # the file can import modules of its folder, like a script
                try:
                    exec(compile(self.content, path, "exec", dont_inherit=True), module.__dict__)
                finally:
                    sys.path.remove(folder)
        except (Exception, SystemExit) as error:
            del sys.modules[module.__name__]
            raise FavoritError(f"study file {self.path}{_line(error, path)}: {error_line(error)}") from None
        return module

    @contextmanager
    def _neighbors(self, folder: str) -> Iterator[str]:
        """A folder with the neighbors: the file's own folder if it has them unchanged, otherwise a temporary copy."""
        if all(
            Path(folder, name).is_file() and Path(folder, name).read_bytes() == content
            for name, content in self.neighbors
        ):
            yield os.path.realpath(folder)
            return
        with TemporaryDirectory(prefix="favorit-") as copies:
            for name, content in self.neighbors:
                Path(copies, name).parent.mkdir(parents=True, exist_ok=True)
                Path(copies, name).write_bytes(content)
            yield copies


def _find(path: str) -> ModuleType | None:
    return next((module for module in list(sys.modules.values()) if _file(module) == path), None)


def _file(module: ModuleType) -> str | None:
    # getattr(module, "__file__") triggers imports of some lazy modules.
    return getattr(module, "__dict__", {}).get("__file__")


def error_line(error: BaseException) -> str:
    """An error in one line, with its type first unless it is a FavoritError."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return text if isinstance(error, FavoritError) else f"{type(error).__name__}: {text}"


def _line(error: BaseException, path: str) -> str:
    """The last line number of the file in the traceback, such as ", line 3"; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f", line {lines[-1]}" if lines else ""
