"""The page and the files of a report: hostile text, no network, formats, atomic writes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import vl_convert

from favorit.charts import save
from favorit.reports.build import build_report
from favorit.reports.page import embedded_json, page
from favorit.reports.write import PAGE, count_files, write_report
from make_runs import make_run, make_study
from training_helpers import raises_line, tiny

HOSTILE = (
    '<script>alert("x")</script>',
    "</script><img src=x onerror=alert(1)>",
    "'\" onmouseover=alert(1) x='",
    "]]><!--",
    "\x1b[31m\x00\x9b red",
    "${alert(1)} {{x}} `id` $(id)",
    "../../outside",
    "\u2028 \ufffe \U0001f642 \u202e",
)


class Elements(HTMLParser):
    """The elements and event handlers of a page, without the content of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


def elements(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    return found


def hostile_runs(folder: Path, text: str) -> None:
    for seed, layout in enumerate(("softmax", "uniform")):
        config = tiny(model=dict(layout=layout), seed=seed)
        classes = [text, f"{text}2", "c"]
        make_run(folder, config, 0.5, name=f"{text} {layout}", study=text, classes=classes, curve=[0.25, 0.5])
    make_run(folder, tiny(train=dict(epochs=1)), name=text, status="failed")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_text_of_the_page_and_files(text: str, tmp_path: Path):
    hostile_runs(tmp_path / "runs", text)
    document = build_report(tmp_path / "runs")
    written = list(write_report(document, tmp_path / "report"))
    content = (tmp_path / "report" / PAGE).read_text()
    plain = Path(tmp_path / "plain")
    hostile_runs(plain, "plain")
    harmless = elements(page(build_report(plain)))
    found = elements(content)
    assert sorted(found.names) == sorted(harmless.names), "the text adds no element"
    assert {name for name, _ in found.attributes} == {name for name, _ in harmless.attributes}
    assert not re.search("[\x00\x1b\x9b\u2028\u202e]", content.replace(_bundle(), ""))
    assert all(path.resolve().is_relative_to(tmp_path / "report") for path in written)
    assert {path.parent.parent for path in written if path.name != PAGE} == {tmp_path / "report"}
    assert len(written) == count_files(document) == len(set(written))


def _bundle() -> str:
    return vl_convert.javascript_bundle()


def test_json_in_the_page_cannot_end_its_script():
    text = embedded_json({"</script>": ["<!--", "]]>", float("nan"), float("inf")]})
    assert not set("<>&") & set(text)
    assert text.endswith("null,null]}")


def test_page_has_no_external_address(tmp_path: Path):
    make_study(
        tmp_path, "hybrids", {"layout=all_standard": [0.5], "layout=uniform": [0.4]}, scale="small", curve=[0.5, 0.75]
    )
    content = page(build_report(tmp_path))
    bundle = _bundle()
    assert content.count(bundle) == 1
    own = content.replace(bundle, "")
    # The version of the specification is a name, which the page does not load.
    schemas = set(re.findall(r"https?://[^\"' ]+", own))
    assert all(re.fullmatch(r"https://vega\.github\.io/schema/vega-lite/v[\d.]+\.json", each) for each in schemas), (
        schemas
    )
    loaded = [value for name, value in elements(content).attributes if name in ("src", "srcset", "action", "data")]
    links = [value for name, value in elements(content).attributes if name == "href"]
    assert loaded == []
    assert all(value is not None and value.startswith("#") for value in links)
    assert "default-src 'none'" in content
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|@import|url\(", own)


def test_page_marks_best_rows_explains_flags_and_lists_gaps(tmp_path: Path):
    accuracies = {"layout=all_standard": [0.5], "layout=uniform": [0.4]}
    make_study(tmp_path, "hybrids", accuracies, scale="small", flags=["watched"])
    content = page(build_report(tmp_path))
    assert 'title="best"' in content
    assert (
        '<abbr title="the test set was evaluated after each epoch, but not used for selection">watched</abbr>'
        in content
    )
    assert content.count("<code>favorit study run hybrids --scale small</code>") == 1
    assert 'class="glance"' in content


def test_every_figure_and_table_is_written_in_every_format(tmp_path: Path):
    make_study(tmp_path / "runs", "quickstart", {"layout=softmax": [0.9], "layout=uniform": [0.5]}, curve=[0.5, 0.75])
    document = build_report(tmp_path / "runs")
    paths = list(write_report(document, tmp_path / "out"))
    assert paths[0] == tmp_path / "out" / "index.html"
    (section,) = document.sections
    expected = {f"variants{suffix}" for suffix in (".csv", ".md", ".tex")}
    expected |= {f"{name}{suffix}" for name in ("accuracy", "curves") for suffix in (".png", ".svg", ".pdf")}
    assert {path.name for path in paths[1:]} == expected
    assert {path.parent.name for path in paths[1:]} == {section.name} == {"quickstart-published-published"}
    starts = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    for path in paths:
        assert path.read_bytes().startswith(starts.get(path.suffix, b""))
    assert set(tmp_path.joinpath("out").rglob("*")) == {*paths, paths[1].parent}, "no temporary file is left"


def test_failed_write_keeps_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_study(tmp_path / "runs", "quickstart", {"layout=softmax": [0.9]})
    document = build_report(tmp_path / "runs")
    list(write_report(document, tmp_path / "out"))
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("favorit.files.sync", full)
    raises_line(lambda: list(write_report(document, tmp_path / "out")), "index.html", "no space left on device")
    monkeypatch.setattr(save, "write_atomically", full)
    monkeypatch.setattr("favorit.files.sync", lambda path: None)
    raises_line(lambda: list(write_report(document, tmp_path / "out")), "accuracy.png", "No space left on device")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_page_whose_place_is_taken_by_a_folder_is_a_mistake(tmp_path: Path):
    make_study(tmp_path / "runs", "quickstart", {"layout=softmax": [0.9]})
    (tmp_path / "out" / PAGE).mkdir(parents=True)
    raises_line(lambda: list(write_report(build_report(tmp_path / "runs"), tmp_path / "out")), PAGE, "is a directory")


def test_sections_of_names_that_differ_in_special_characters_have_different_folders(tmp_path: Path):
    for number, study in enumerate(("a b", "a/b", "a:b", "/")):
        make_run(tmp_path, tiny(seed=number), name="one", study=study)
    found = [section.name for section in build_report(tmp_path).sections]
    assert sorted(found) == ["a-b-published-runs", "a-b-published-runs-2", "a-b-published-runs-3", "published-runs"]
