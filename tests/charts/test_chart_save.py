"""Files of charts: formats, and writes that are complete or leave the previous file."""

from __future__ import annotations

import io
from pathlib import Path

import altair as alt
import pandas
import pytest
import vl_convert
from PIL import Image, ImageChops

from favorit import FavoritError
from favorit.charts import save
from favorit.charts.save import FORMATS, save_chart, specification
from favorit.charts.svg import without_groups

CHART = (
    alt.Chart(pandas.DataFrame({"x": [1, 2], "y": [3, 4], "name": ["a", "b"]}))
    .mark_point()
    .encode(x="x", y="y", color="name")
)


def nested(levels: int) -> alt.TopLevelMixin:
    """A chart within charts."""
    chart: alt.TopLevelMixin = CHART
    for _ in range(levels):
        chart = alt.hconcat(alt.vconcat(chart))
    return chart


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".PDF", b"%PDF"), (".svg", b"<svg")])
def test_chart_has_the_format_of_its_suffix(suffix: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"figure{suffix}"
    save_chart(CHART, path)
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


def test_chart_is_written_in_several_formats_at_once(tmp_path: Path) -> None:
    save_chart(specification(CHART), *(tmp_path / f"figure{suffix}" for suffix in FORMATS))
    assert len(list(tmp_path.iterdir())) == len(FORMATS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("figure", "figure: unknown format without suffix: use .png, .svg or .pdf"),
        ("figure.foo", "figure.foo: unknown format .foo: use .png, .svg or .pdf"),
        ("nowhere/figure.png", "cannot write .*figure.png: No such file or directory"),
    ],
)
def test_chart_that_cannot_be_written_is_rejected_in_one_line(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FavoritError, match=message) as error:
        save_chart(CHART, tmp_path / name)
    assert "\n" not in str(error.value)


def test_formats_are_checked_before_the_first_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(FavoritError, match="unknown format"):
        save_chart(CHART, tmp_path / "figure.svg", tmp_path / "figure.foo")
    assert not list(tmp_path.iterdir())


def test_failed_write_keeps_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.png"
    path.write_text("previous")

    def fail_halfway(content: bytes, temporary: Path) -> None:
        temporary.write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save, "_write_bytes", fail_halfway)
    with pytest.raises(FavoritError, match=r"No space left on device$"):
        save_chart(CHART, path)
    assert path.read_text() == "previous"
    assert list(tmp_path.iterdir()) == [path]


def test_charts_within_charts_are_written_as_pdf(tmp_path: Path) -> None:
    chart = nested(4)
    with pytest.raises(RuntimeError, match="nesting depth is too high"):
        vl_convert.svg_to_pdf(vl_convert.vegalite_to_svg(specification(chart)))
    save_chart(chart, tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_picture_without_groups_is_the_same() -> None:
    svg = vl_convert.vegalite_to_svg(specification(nested(1)))
    flat = without_groups(svg)
    assert flat.count("<g") < svg.count("<g") / 5
    before, after = (Image.open(io.BytesIO(vl_convert.svg_to_png(each, scale=2))).convert("L") for each in (svg, flat))
    changed = ImageChops.difference(before, after).point(lambda value: 255 if value > 128 else 0)
    assert changed.getbbox() is None


@pytest.mark.parametrize("text", ["\x1b[31m", "\x00", "\u2028", "\ud800", "\ufffe", "\uffff"])
def test_text_that_is_not_valid_in_xml_is_escaped(text: str, tmp_path: Path) -> None:
    """vl-convert aborts the process for such text."""
    chart = alt.Chart(pandas.DataFrame({"name": [f"a{text}b"], "y": [1]})).mark_point().encode(x="y", y="name:N")
    for given in (chart, chart.to_dict()):
        save_chart(given, tmp_path / "figure.svg")
        content = (tmp_path / "figure.svg").read_text()
        assert text not in content
        assert f"a{text.encode('unicode_escape').decode()}b" in content.replace("\\x", "\\x")
