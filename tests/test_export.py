"""Tables: formats, and writes that are complete or leave the previous file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas
import pytest

from favorit import FavoritError
from favorit.export import render_table, write_csv


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None


def test_csv_of_dataclasses_has_field_names_and_empty_cells_for_none(tmp_path: Path) -> None:
    write_csv([Row("a, b", 1.5), Row("c", None)], tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == 'name,value\n"a, b",1.5\nc,\n'


def test_csv_of_dicts_has_columns_of_all_rows(tmp_path: Path) -> None:
    write_csv([{"a": 1}, {"a": 2, "b": "x"}], tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == "a,b\n1,\n2,x\n"


def test_csv_that_cannot_be_written_is_rejected_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        FavoritError, match=r"^cannot write .*rows\.csv: Cannot save file into a non-existent directory"
    ):
        write_csv([], tmp_path / "nowhere" / "rows.csv")


def test_failed_write_keeps_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("previous")

    def fail_halfway(table: pandas.DataFrame, temporary: Path, **options: object) -> None:
        temporary.write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pandas.DataFrame, "to_csv", fail_halfway)
    with pytest.raises(FavoritError, match=r"No space left on device$"):
        write_csv([{"a": 1}], path)
    assert path.read_text() == "previous"
    assert list(tmp_path.iterdir()) == [path]


TITLES, ROWS = ["name", "count"], [["relu|a & b", "1,234"], ["x_1 <y>, 50%", "-5,000.25"]]


def test_table_as_csv_has_plain_numbers() -> None:
    assert render_table(TITLES, ROWS, "csv", right=["count"]) == 'name,count\nrelu|a & b,1234\n"x_1 <y>, 50%",-5000.25'
    assert render_table(["a"], [["1,234"]], "csv") == 'a\n"1,234"', "text with a comma is not a number"


def test_table_as_markdown_escapes_bars_and_aligns_numbers() -> None:
    assert render_table(TITLES, ROWS, "markdown", right=["count"]).splitlines() == [
        "| name | count |",
        "| --- | ---: |",
        "| relu\\|a & b | 1,234 |",
        "| x_1 <y>, 50% | -5,000.25 |",
    ]


def test_table_as_latex_escapes_special_characters() -> None:
    assert render_table(TITLES, ROWS, "latex", right=["count"]).splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"name & count \\",
        r"\midrule",
        r"relu\textbar{}a \& b & 1,234 \\",
        r"x\_1 \textless{}y\textgreater{}, 50\% & -5,000.25 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
