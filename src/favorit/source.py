"""A user's Python file that registers components: its content, and the modules that it imports from its own folder.

Workers and nodes must import the file to know its components. A node may not have the file, so its content is sent.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from sysconfig import get_paths
from types import ModuleType
from typing import Any

from favorit.errors import FavoritError

ENDS = (".py", f"{os.sep}__init__.py")

_imported: dict[str, tuple[bytes, ModuleType]] = {}  # by path, because a file is imported once per process


@dataclass(frozen=True)
class Source:
    """The content of the file at `path`. `neighbors` has the modules that it imports from its own folder, as
    (relative path, content).

    `name` is the relative path of the file itself. For a module of a package it starts with the package's folder:
    `package/mine.py`. Then "its own folder" is the one that contains the package.
    """

    path: str
    content: bytes
    neighbors: tuple[tuple[str, bytes], ...] = ()
    name: str = ""

    @classmethod
    def read(cls, path: str | Path) -> Source:
        """The source at `path`. In a folder with `__init__.py`, it is a module of that package."""
        folder, name = os.path.split(os.path.abspath(path))
        while os.path.isfile(os.path.join(folder, "__init__.py")):
            folder, package = os.path.split(folder)
            name = os.path.join(package, name)
        try:
            return cls(str(path), Path(path).read_bytes(), name=name)
        except OSError as error:
            raise FavoritError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None

    @classmethod
    def of_module(cls, variables: Mapping[str, Any]) -> Source | None:
        """The source of the module with these global variables; None if it has no file, as in a notebook."""
        file = variables.get("__file__")
        content = _content(variables, file) if isinstance(file, str) else None
        if file is None or content is None:
            return None
        path, spec = os.path.abspath(file), variables.get("__spec__")
        stem = str(variables["__name__"] if spec is None else spec.name).replace(".", os.sep)
        names = (f"{stem}{end}" for end in ENDS if path.endswith(f"{os.sep}{stem}{end}"))
        return cls(path, content, name=next(names, os.path.basename(path)))

    @property
    def folder(self) -> str:
        """The folder that `name` and the names of the neighbors are relative to."""
        return os.path.abspath(self.path).removesuffix(self._name).rstrip(os.sep) or os.sep

    @property
    def _name(self) -> str:
        return self.name or os.path.basename(self.path)

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each file by its relative path, the file itself first."""
        files = ((self._name, self.content), *self.neighbors)
        return {name: hashlib.sha256(content).hexdigest() for name, content in files}

    def load(self, *, only_known: bool = False) -> ModuleType:
        """The file's module. Imports it unless this process has imported this content or runs the file as a script.

        With `only_known`, the file can import its neighbors and what Python finds without it, but no other module of
        its folder.
        """
        path = os.path.abspath(self.path)
        content, module = _imported.get(path) or (self.content, _find(path))
        if module is None or content != self.content:
            module = self._execute(path, only_known)
        _imported[path] = self.content, module
        return module

    def gather(self) -> Source:
        """A copy with an absolute path and with the modules of its folder that it imports, also indirectly.

        These are modules that this process has imported and that an import statement names.
        """
        loaded = self._loaded()
        found: dict[str, bytes] = {}
        pending = [(self._name, self.content)]
        while pending:
            for module in imported_names(*pending.pop()):
                stem = module.replace(".", os.sep)
                for name in (f"{stem}{end}" for end in ENDS):
                    if name in loaded and name not in found:
                        found[name] = loaded[name]
                        pending.append((name, loaded[name]))
        return replace(self, path=os.path.abspath(self.path), neighbors=tuple(sorted(found.items())))

    def _loaded(self) -> dict[str, bytes]:
        """The modules of its folder that this process has imported. In a folder of installed packages, only those of
        its own package.
        """
        folders = {self.folder, os.path.realpath(self.folder)}
        package = f"{self._name.partition(os.sep)[0]}{os.sep}" if self.folder in get_paths().values() else ""
        found: dict[str, bytes] = {}
        for module_name, module in list(sys.modules.items()):
            file, stem = _file(module), module_name.replace(".", os.sep)
            for name in (f"{stem}{end}" for end in ENDS if file and file.endswith(f"{os.sep}{stem}{end}")):
                is_in_folder = str(file).removesuffix(f"{os.sep}{name}") in folders
                if is_in_folder and name != self._name and name.startswith(package):
                    content = _content(vars(module), str(file))
                    found |= {} if content is None else {name: content}
        return found

    def _execute(self, path: str, only_known: bool) -> ModuleType:
        """Imports the file: a module of a package by its name, any other under a name that no import statement uses."""
        folder, is_closed = os.path.realpath(self.folder), only_known and self.folder not in sys.path
        files = _Files(self.folder, {self._name: self.content, **dict(self.neighbors)}, is_closed)
        stem = self._name.removesuffix(ENDS[1]).removesuffix(ENDS[0])
        name = stem.replace(os.sep, ".") if os.sep in self._name else f"favorit_study_{stem}"
        sys.modules.pop(name, None)
        sys.meta_path.insert(0, files)
        if not only_known:
            sys.path.insert(0, folder)  # the file can import modules of its folder, like a script
        try:
            if os.sep in self._name:
                return importlib.import_module(name)
            spec = files.spec(name, path)
            module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module there
            files.exec_module(module)
        except (Exception, SystemExit) as error:
            sys.modules.pop(name, None)
            raise FavoritError(f"cannot import {self.path}{_line(error, path)}: {error_line(error)}") from None
        finally:
            sys.meta_path.remove(files)
            if not only_known:
                sys.path.remove(folder)
        return module


class _Files(MetaPathFinder, Loader):
    """Imports modules from contents in memory: {path relative to `folder`: content}.

    If `is_closed`, packages have no other modules than these.
    """

    def __init__(self, folder: str, contents: Mapping[str, bytes], is_closed: bool) -> None:
        self.folder = folder
        self.contents = {os.path.join(folder, name): content for name, content in contents.items()}
        self.is_closed = is_closed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        stem = os.path.join(self.folder, *fullname.split("."))
        locations = [] if self.is_closed else [stem]
        for file in (f"{stem}{end}" for end in ENDS):
            if file in self.contents:
                return self.spec(fullname, file, locations if file.endswith(ENDS[1]) else None)
        is_on_disk = not self.is_closed and os.path.isfile(f"{stem}{ENDS[1]}")
        if not is_on_disk and any(file.startswith(f"{stem}{os.sep}") for file in self.contents):
            # A package without __init__.py.
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = locations
            return spec
        return None

    def spec(self, name: str, file: str, locations: list[str] | None = None) -> ModuleSpec:
        spec = spec_from_file_location(name, file, loader=self, submodule_search_locations=locations)
        assert spec is not None
        return spec

    def get_data(self, path: str) -> bytes:
        return self.contents[path]

    def exec_module(self, module: ModuleType) -> None:
        file = str(module.__file__)
        exec(compile(self.contents[file], file, "exec", dont_inherit=True), module.__dict__)


def imported_names(name: str, content: bytes) -> set[str]:
    """The dotted names that the import statements of a module may mean, and those of its own packages.

    `name` is the module's relative path, for relative imports.
    """
    package = list(Path(name).parent.parts)
    found = {".".join(package)}
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # edited since this process has imported it
        return set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)}
    parts = [each.split(".") for each in found]
    return {".".join(each[:count]) for each in parts for count in range(1, len(each) + 1)} - {""}


def _find(path: str) -> ModuleType | None:
    return next((module for module in list(sys.modules.values()) if _file(module) == path), None)


def _file(module: ModuleType) -> str | None:
    # getattr(module, "__file__") triggers imports of some lazy modules.
    return getattr(module, "__dict__", {}).get("__file__")


def _content(variables: Mapping[str, Any], file: str) -> bytes | None:
    """The content of a module's file; None if it cannot be read. Its loader may have it in memory."""
    read = getattr(variables.get("__loader__"), "get_data", None) or (lambda path: Path(path).read_bytes())
    try:
        return bytes(read(file))
    except OSError:
        return None


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
