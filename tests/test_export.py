"""Tables: formats, and writes that are complete or leave the previous file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas
import pytest

from favorit import FavoritError
from favorit.export import write_csv


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
