"""Imports point one way, modules stay short, and nothing goes round in a circle."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "favorit"
MOST_LINES = 350

# Each row may import itself and the rows above it. The package's own __init__ is lazy and may name anything.
ORDER = [
    [
        "autocast",
        "lazy",
        "curves",
        "errors",
        "files",
        "spec",
        "config",
        "seeds",
        "grids",
        "measure",
        "process",
        "workers",
        "quiet",
        "foreign_load",
        "published",
    ],
    ["attention", "position"],
    ["model"],
    ["catalog", "data", "train", "training", "evaluate", "convert"],
    ["study", "studies", "tune", "tuning", "bench", "selftest"],
    ["report"],
    ["cli", "demo", "__main__"],
]
LEVELS = {name: level for level, names in enumerate(ORDER) for name in names}

FILES = {"favorit." + ".".join(path.relative_to(SRC).with_suffix("").parts): path for path in sorted(SRC.rglob("*.py"))}
MODULES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it; a package stands for its __init__."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "favorit"}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} line {node.lineno}: relative imports hide where they point"
            if node.module and node.module.split(".")[0] == "favorit":
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name if name in MODULES else node.module for name in whole}
    return found - {"favorit"}  # its version; the rest of it is lazy


IMPORTS = {name: imports(path) for name, path in MODULES.items() if name != "favorit"}


def part(module: str) -> str:
    return module.split(".")[1]


def test_walk_finds_the_imports_there_are():
    assert {"favorit.attention.mixer", "favorit.position", "favorit.seeds"} <= IMPORTS["favorit.attention.layer"]
    assert "favorit.model.summary" in IMPORTS["favorit.cli.show"], "those inside functions too"
    assert len(IMPORTS) > 30


@pytest.mark.parametrize("module", IMPORTS)
def test_imports_point_one_way(module):
    assert part(module) in LEVELS, f"give {part(module)} a place in ORDER, and in the design"
    upward = [name for name in IMPORTS[module] if LEVELS[part(name)] > LEVELS[part(module)]]
    assert not upward


@pytest.mark.parametrize("module", IMPORTS)
def test_imports_exist(module):
    assert not IMPORTS[module] - set(MODULES)


def test_no_modules_import_each_other_in_a_circle():
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("module", MODULES)
def test_module_is_short(module):
    assert len(MODULES[module].read_text().splitlines()) <= MOST_LINES
