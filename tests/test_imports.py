"""Imports follow the order of the layers, there are no cycles, and modules stay short."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "favorit"
MOST_LINES = 350

# A package or module may import from its own row and from the rows above. The package's __init__ imports lazily.
ORDER = [
    [
        "allocation",
        "autocast",
        "lazy",
        "smoothing",
        "terminal",
        "errors",
        "charts",
        "export",
        "files",
        "grammar",
        "spec",
        "config",
        "fields",
        "locks",
        "display",
        "seeds",
        "grids",
        "tensors",
        "measure",
        "process",
        "workers",
        "machine_lock",
        "foreign_load",
        "origins",
        "remembered",
        "source",
        "published",
    ],
    ["attention", "position"],
    ["model"],
    ["catalog", "data", "training", "metrics"],
    ["study", "studies", "tuning", "bench", "selftest"],
    ["reports"],
    ["cli", "demo", "__main__"],
]
LEVELS = {name: level for level, names in enumerate(ORDER) for name in names}

FILES = {"favorit." + ".".join(path.relative_to(SRC).with_suffix("").parts): path for path in sorted(SRC.rglob("*.py"))}
MODULES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def imports(path: Path) -> set[str]:
    """The modules of favorit that a file imports at any depth; a package stands for its __init__."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "favorit"}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} line {node.lineno}: relative imports are not allowed"
            if node.module and node.module.split(".")[0] == "favorit":
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name if name in MODULES else node.module for name in whole}
    return found - {"favorit"}  # `favorit` itself only provides its version and lazy imports


IMPORTS = {name: imports(path) for name, path in MODULES.items() if name != "favorit"}


def part(module: str) -> str:
    return module.split(".")[1]


def test_imports_at_any_depth_are_found():
    assert {"favorit.attention.mixer", "favorit.position", "favorit.seeds"} <= IMPORTS["favorit.attention.layer"]
    assert "favorit.model.summary" in IMPORTS["favorit.cli.show"], "also inside functions"
    assert len(IMPORTS) > 30


def test_order_has_exactly_the_layers_that_exist():
    assert set(LEVELS) == {part(module) for module in IMPORTS}


@pytest.mark.parametrize("module", IMPORTS)
def test_imports_follow_the_order(module):
    upward = [name for name in IMPORTS[module] if LEVELS[part(name)] > LEVELS[part(module)]]
    assert not upward


@pytest.mark.parametrize("module", IMPORTS)
def test_imports_exist(module):
    assert not IMPORTS[module] - set(MODULES)


def test_imports_have_no_cycles():
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("module", MODULES)
def test_module_is_short(module):
    assert len(MODULES[module].read_text().splitlines()) <= MOST_LINES
