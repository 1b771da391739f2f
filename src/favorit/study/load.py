"""Loads studies by name or from a file."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from favorit.errors import FavoritError, unknown
from favorit.origins import import_file
from favorit.study.study import Study


def built_in() -> dict[str, str]:
    """The name of each built-in study and the module that defines it."""
    import favorit.studies

    return {
        module.name.replace("_", "-"): f"favorit.studies.{module.name}"
        for module in pkgutil.iter_modules(favorit.studies.__path__)
    }


def load_study(name_or_path: str | Path) -> Study:
    """The built-in study of this name, or the STUDY of a Python file."""
    if not isinstance(name_or_path, str | Path):
        raise FavoritError(f"a study is a Study, a name or the path of a .py file, not {type(name_or_path).__name__}")
    text, modules = str(name_or_path), built_in()
    if text in modules:
        return _study(importlib.import_module(modules[text]), modules[text])
    if not text.endswith(".py"):
        raise unknown("study (or the path of a .py file with STUDY = ...)", text, modules)
    return _study(import_file(text), text)


def _study(module: Any, where: str) -> Study:
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise FavoritError(f"study file {where} must hold STUDY = Study(name, question, base, points)")
    return study
