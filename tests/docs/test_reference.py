"""The reference lists every component with its promises, and each excused invariant with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import cases_model
from favorit.attention import KERNELS
from favorit.catalog import KINDS, list_components
from favorit.config import SECTIONS
from favorit.model import PRESETS
from favorit.model.presets import REPORTS
from favorit.selftest import cases
from favorit.spec import parameters_of
from generator import reference
from generator.docstring import markdown
from generator.promises import CHECKS, explained
from mutants import MUTANTS


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("site") / "reference"
    reference.write(folder)
    return {path.stem: path.read_text() for path in folder.iterdir()}


def section(page: str, name: str) -> str:
    """The section of a component in a page."""
    return page.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("kind", reference.PAGES)
def test_page_has_a_section_for_every_component(kind: str, pages: dict[str, str]) -> None:
    for name in list_components(kind):
        if kind == "mixers" and name in KERNELS:
            continue
        assert ":Source: " in section(pages[kind], name)


def test_every_kind_has_a_page_in_the_index(pages: dict[str, str]) -> None:
    assert set(KINDS) < set(pages)
    index = pages["index"].split()
    assert set(pages) - {"index"} <= set(index)


def test_reasons_of_excused_invariants_are_shown(pages: dict[str, str]) -> None:
    tables = [("kernels" if name in KERNELS else "mixers", name, case) for name, case in cases.MIXERS.items()]
    tables += [("kernels", name, case) for name, case in cases.RAW.items()]
    for kind, table in (
        ("positions", cases_model.POSITIONS),
        ("stems", cases_model.STEMS),
        ("heads", cases_model.HEADS),
    ):
        tables += [(kind, name, case) for name, entries in table.items() for case in entries]
    assert sum(len(case.excused) for _, _, case in tables) > 20
    for kind, name, case in tables:
        text = section(pages[kind], name)
        for check, reason in case.excused.items():
            assert f"*{check.replace('_', ' ')}*: {markdown(reason)}" in text, f"{name}: {check}"


def test_component_without_excuse_is_listed_with_all_invariants(pages: dict[str, str]) -> None:
    assert f"All {len(CHECKS['mixers'])} [invariants](promises.md#mixers)" in section(pages["kernels"], "favor")
    assert f"{len(CHECKS['mixers']) - 9} of {len(CHECKS['mixers'])} " in section(pages["mixers"], "linformer")


def test_every_invariant_has_a_description() -> None:
    for kind in CHECKS:
        assert [name for name, words in explained(kind) if not words] == [], kind


def test_promises_page_lists_every_mutant(pages: dict[str, str]) -> None:
    assert all(f"| {name} |" in pages["promises"] for name in MUTANTS)


def test_presets_are_grouped_by_report(pages: dict[str, str]) -> None:
    assert set(REPORTS) < set(PRESETS)
    assert next(iter(PRESETS)) in REPORTS
    assert all(f"| `{name}` |" in pages["presets"] for name in PRESETS)
    assert pages["presets"].count("## Report ") == len(REPORTS) == 5


def test_fields_page_lists_every_field(pages: dict[str, str]) -> None:
    names = [f"{section}.{key}" for section, config in SECTIONS.items() for key in config.model_fields]
    assert all(f"| `{name}` |" in pages["fields"] for name in names)


def test_parameters_are_described_in_words() -> None:
    def build(m: int | None = None, scale: float = 0.5, raw: bool = False, sizes: tuple[int, ...] = (1,)) -> None: ...

    found = {name: reference.kind_of(parameter) for name, parameter in parameters_of(build).items()}
    assert found == {"m": "integer or `None`", "scale": "number", "raw": "`True`, `False`", "sizes": "tuple of integer"}


def test_unchanged_page_is_not_rewritten(tmp_path: Path) -> None:
    reference.write(tmp_path / "reference")
    page = tmp_path / "reference" / "layouts.md"
    stamp = page.stat().st_mtime_ns
    reference.write(tmp_path / "reference")
    assert page.stat().st_mtime_ns == stamp
