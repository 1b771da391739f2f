"""Studies by name or by file: a study file is Python with STUDY = Study(...)."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from pathlib import Path
from typing import Any

from favorit.errors import FavoritError, unknown
from favorit.study.study import Study


def built_in() -> dict[str, str]:
    """The built-in studies: name -> module."""
    import favorit.studies

    return {module.name.replace("_", "-"): f"favorit.studies.{module.name}" for module in pkgutil.iter_modules(favorit.studies.__path__)}


def load_study(name_or_path: str | Path) -> Study:
    """A built-in study by its name, or the STUDY of a Python file."""
    text, modules = str(name_or_path), built_in()
    if text in modules:
        return _study(importlib.import_module(modules[text]), modules[text])
    if not text.endswith(".py"):
        raise unknown("study (or the path of a .py file with STUDY = ...)", text, modules)
    return _study(_import(Path(text)), text)


def _import(path: Path) -> Any:
    if not path.is_file():
        raise FavoritError(f"study file {path}: no such file")
    spec = importlib.util.spec_from_file_location(f"favorit_study_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # what lies beside it can be imported, as from any script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise FavoritError(f"study file {path}{_line(error, path)}: {said(error)}") from None
    finally:
        sys.path.pop(0)
    return module


def _line(error: BaseException, path: Path) -> str:
    """The last line of the file that was on the way to the error."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f", line {lines[-1]}" if lines else ""


def said(error: BaseException) -> str:
    """An error in one line; what is no mistake of the user has its kind in front."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return text if isinstance(error, FavoritError) else f"{type(error).__name__}: {text}"


def _study(module: Any, where: str) -> Study:
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise FavoritError(f"study file {where} must hold STUDY = Study(name, question, base, points)")
    return study
