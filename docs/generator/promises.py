"""The invariants that each component satisfies, and its exceptions with reasons, read from the conformance tests."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cases_model
from checks_model import checks_in
from favorit.selftest import cases, checks
from generator.docstring import markdown

TESTS = Path(__file__).parents[2] / "tests"


def load(path: str) -> ModuleType:
    """Imports a test file as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The checks of each kind of component, by name.
CHECKS: dict[str, Mapping[str, Callable[..., None]]] = {
    "mixers": checks.MIXER_CHECKS,
    "positions": checks_in(vars(load("position/test_positions.py"))),
    "stems": checks_in(vars(load("model/test_stems.py"))),
    "heads": checks_in(vars(load("model/test_heads.py"))),
}
MODEL_CASES = {"positions": cases_model.POSITIONS, "stems": cases_model.STEMS, "heads": cases_model.HEADS}


def promises(kind: str, name: str) -> list[str]:
    """Lines of Markdown: how many invariants hold and which specs are tested; then each exception and its reason."""
    if kind in ("mixers", "kernels"):
        lines = _mixer(cases.MIXERS[name], "")
        return lines + (_mixer(cases.RAW[name], "With `raw=True`: ") if name in cases.RAW else [])
    if kind in MODEL_CASES:
        entries = MODEL_CASES[kind][name]
        excused = {check: reason for entry in entries for check, reason in entry.excused.items()}
        everywhere = {check for check in excused if all(check in entry.excused for entry in entries)}
        some = {
            check: f"{reason} (`{'`, `'.join(entry.spec for entry in entries if check in entry.excused)}`)"
            for check, reason in excused.items()
            if check not in everywhere
        }
        return _lines(kind, [entry.spec for entry in entries], {**excused, **some}, "")
    return []


def _mixer(case: Any, condition: str) -> list[str]:
    near = " They are tested only on tokens near a fixed one, where the weights are well defined." if case.near else ""
    first, *rest = _lines("mixers", case.specs, case.excused, condition)
    return [first + near, *rest]


def _lines(kind: str, specs: Sequence[str], excused: Mapping[str, str], condition: str) -> list[str]:
    count = len(CHECKS[kind])
    held = f"all {count}" if not excused else f"{count - len(excused)} of {count}"
    tried = ", ".join(f"`{spec}`" for spec in specs)
    return [
        f"{condition}{held} [invariants](promises.md#{kind}), tested on {tried}.",
        *(f"Excused from *{label(check)}*: {markdown(reason)}." for check, reason in excused.items()),
    ]


def label(check: str) -> str:
    """The name of a check, with spaces for underscores."""
    return check.replace("_", " ")


def explained(kind: str) -> list[tuple[str, str]]:
    """(name, description) of every invariant of a kind of component."""
    return [
        (label(name), markdown(" ".join((inspect.getdoc(check) or "").split()))) for name, check in CHECKS[kind].items()
    ]
