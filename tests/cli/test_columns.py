"""Tables on screens that are too narrow for them."""

from __future__ import annotations

import io
import os
import shutil
import sys

import pytest
from rich.console import Console

from favorit.cli.columns import write_columns
from favorit.cli.console import print_columns

TITLES = ["run", "layers", "seed", "test"]
ROWS = [["0123456789abcdef", "relu(m=64)*3|softmax*3", "42", "91.25%"], ["fedcba9876543210", "softmax", "7", "90.00%"]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """What is written on a terminal of some width, None for a pipe."""

    def write(width: int | None) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: width is not None, raising=False)
        monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((width or 0, 24)))
        write_columns(TITLES, ROWS, right=["seed", "test"], optional=["seed"])
        return capsys.readouterr().out.splitlines()

    return write


def test_where_there_is_room_everything_is_shown(written) -> None:
    for width in (None, 200, len(max(written(None), key=len))):
        assert written(width) == [
            "run               layers                  seed    test",
            "0123456789abcdef  relu(m=64)*3|softmax*3    42  91.25%",
            "fedcba9876543210  softmax                    7  90.00%",
        ]


def test_words_are_cut_and_names_of_rows_and_numbers_never_are(written) -> None:
    first, *rows = written(48)
    assert first.split() == TITLES
    assert rows[0] == "0123456789abcdef  relu(m=64)*3|so…    42  91.25%"
    assert max(map(len, rows)) <= 48


def test_then_whole_columns_go_and_a_line_says_which(written) -> None:
    *table, note = written(40)
    assert table[1] == "0123456789abcdef  relu(m=64)*3|…  91.25%"
    assert note == "not shown on 40 columns: seed"


@pytest.mark.parametrize("width", range(27, 60, 3))
def test_numbers_of_a_table_are_whole_or_absent(width: int) -> None:
    rows = [{"run": "0123456789abcdef", "top 5": "99.00%", "parameters": "1,234,567", "test": "91.25%"}, {"run": "mean", "test": "9%"}]
    console = Console(file=io.StringIO(), width=width)
    print_columns(console, rows, ("top 5", "parameters"))
    heading, _, first, second, *notes = console.file.getvalue().splitlines()
    shown = [title for title in rows[0] if title in heading]
    assert [title for title in rows[0] if title not in shown] == (notes[0].partition(": ")[2].split(", ") if notes else [])
    assert first.split() == [rows[0][title] for title in shown]
    assert second.split() == ["mean", "9%"]
    assert all(len(line) <= width for line in (heading, first, second))
    assert {"run", "test"} <= set(shown)
