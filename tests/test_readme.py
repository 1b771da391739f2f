"""The README is true: its tree of files, its names, its five lines of Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import favorit

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def block(title: str) -> str:
    """The first fenced block under a heading."""
    section = README.split(f"## {title}\n", 1)[1]
    return re.search(r"```\w*\n(.*?)```", section, re.S)[1]  # type: ignore[index]


def test_the_tree_names_what_is_there() -> None:
    tree = block("Tree")
    top, package = tree.split("src/favorit/\n", 1)
    for line in [*top.splitlines(), package.splitlines()[-1]]:
        assert (ROOT / line.split()[0]).exists(), line
    inside = "\n".join(line for line in package.splitlines() if line.startswith("  "))
    named = set(re.findall(r"\b(\w+\.py)\b", inside))
    assert named == {path.name for path in (ROOT / "src/favorit").glob("[a-z]*.py")}
    inside = re.sub(r"\(.*\)", "", re.sub(r"\n {6,}", " ", inside))  # a line may go on below, and describe in brackets
    folders = {match[1]: match[2].split() for match in re.finditer(r"^  (\w+)/ +(.*)$", inside, re.M)}
    assert set(folders) == {path.parent.name for path in (ROOT / "src/favorit").glob("*/__init__.py")}
    for folder, modules in folders.items():
        for module in modules:
            assert folder == "cli" or (ROOT / "src/favorit" / folder / f"{module}.py").exists(), f"{folder}/{module}.py"


@pytest.mark.parametrize("folder", ["attention", "position", "model", "training"])
def test_the_tree_leaves_no_module_out(folder: str) -> None:
    line = re.search(rf"^  {folder}/ +(.*)$", block("Tree"), re.M)
    assert line is not None
    assert set(line[1].split()) == {path.stem for path in (ROOT / "src/favorit" / folder).glob("[a-z]*.py")}


def test_the_table_of_axes_names_every_component() -> None:
    for kind, axis in [
        ("mixers", "mixer"),
        ("kernels", "kernel"),
        ("positions", "position"),
        ("layouts", "layout"),
        ("stems", "stem"),
        ("heads", "head"),
        ("locals", "local"),
    ]:
        row = re.search(rf"^\| {axis} \|(.*)$", README, re.M)
        assert row is not None
        named = set(re.findall(r"`(\w+)`", row[1]))
        missing = (
            set(favorit.list_components(kind))
            - named
            - (set(favorit.list_components("kernels")) if kind == "mixers" else set())
        )
        assert not missing, f"{kind}: {missing}"


def test_the_five_lines_run() -> None:
    names: dict[str, object] = {}
    exec(block("Five lines of Python"), names)
    assert names["logits"].shape == (8, 10)  # type: ignore[attr-defined]
    assert names["tokens"].shape == (8, 55, 64)  # type: ignore[attr-defined]


def test_every_picture_is_there() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).exists(), path
