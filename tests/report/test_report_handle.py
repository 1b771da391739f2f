"""`favorit.report` in a script and in a notebook."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import altair
import pytest

import favorit
from favorit import FavoritError
from favorit.study import Study, product
from make_runs import make_study
from training_helpers import PATIENCE, raises_line

ACCURACIES = {"layout=softmax": [0.5, 0.5], "layout=uniform": [0.4]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_study(tmp_path / "runs", "quickstart", ACCURACIES, curve=[0.25, 0.5])
    return tmp_path / "runs"


def test_report_is_a_function_after_its_package_is_imported():
    code = "import favorit.reports.build, favorit.cli.report as _; print(favorit.report.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "favorit.reports.handle\n"


def test_repr_says_the_result_of_each_section(folder: Path):
    first, *lines = repr(favorit.report(folder=folder)).splitlines()
    assert first == "<Report: 3 runs, 2 figures>"
    assert len(lines) == 1
    assert lines[0].startswith("quickstart, scale published, protocol published: On digits, the baseline softmax is")


def test_notebook_shows_the_page_in_a_frame_of_its_own(folder: Path):
    report = favorit.report("quickstart", folder)
    tags: list[tuple[str, dict[str, str | None]]] = []

    class Frame(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append((tag, dict(attrs)))

    Frame().feed(report._repr_html_())
    ((tag, attributes),) = tags
    assert tag == "iframe"
    assert attributes["srcdoc"] is not None
    assert attributes["srcdoc"].startswith("<!doctype html>")
    assert "quickstart" in attributes["srcdoc"]
    assert "allow-same-origin" not in str(attributes["sandbox"]), "the page's scripts cannot reach the notebook"


def test_charts_and_tables_can_be_used_in_a_script(folder: Path):
    report = favorit.report(folder=folder)
    assert set(report.charts) == {"quickstart-published-published/accuracy", "quickstart-published-published/curves"}
    assert all(isinstance(chart, altair.TopLevelMixin) for chart in report.charts.values())
    table = report.tables["quickstart-published-published/variants"]
    assert list(table["accuracy"]) == pytest.approx([0.5, 0.4])


def test_write_returns_the_path_of_the_page(folder: Path, tmp_path: Path):
    page = favorit.report(folder=folder).write(tmp_path / "out")
    assert page == tmp_path / "out" / "index.html"
    assert len(list((tmp_path / "out").rglob("*.png"))) == 2


def test_study_can_be_an_object(tmp_path: Path):
    study = Study("mine", "Which?", {"data.name": "digits"}, product({"model.layout": ["softmax", "uniform"]}))
    make_study(tmp_path, study, {"layout=softmax": [0.5]})
    (section,) = favorit.report([study], tmp_path).document.sections
    assert (section.question, len(section.tables[0].rows)) == ("Which?", 1)


@pytest.mark.parametrize("studies", [3, [3], {"quickstart"}, None])
def test_studies_of_another_type_are_a_mistake(studies: object, folder: Path):
    message = raises_line(lambda: favorit.report(studies, folder), "a Study, its name or its file")
    assert repr(studies) in message


def test_folder_of_another_type_is_a_mistake():
    with pytest.raises(FavoritError, match="folder"):
        favorit.report(folder=3)
