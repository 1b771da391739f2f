"""Plain text tables on narrow terminals and in pipes."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from favorit.cli.columns import write_columns

TITLES = ["run", "layers", "seed", "test"]
ROWS = [["0123456789abcdef", "relu(m=64)*3|softmax*3", "42", "91.25%"], ["fedcba9876543210", "softmax", "7", "90.00%"]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A function that prints a table and returns its lines. `width` is that of the terminal, or None for a pipe."""

    def write(width: int | None, titles=TITLES, rows=ROWS, **options: Any) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: width is not None, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        write_columns(titles, rows, **(options or dict(right=["seed", "test"], optional=["seed"])))
        return capsys.readouterr().out.splitlines()

    return write


def test_table_that_fits_is_not_cut(written) -> None:
    for width in (None, 200, len(max(written(None), key=len))):
        assert written(width) == [
            "run               layers                  seed    test",
            "0123456789abcdef  relu(m=64)*3|softmax*3    42  91.25%",
            "fedcba9876543210  softmax                    7  90.00%",
        ]


def test_only_text_after_the_first_column_is_cut(written) -> None:
    first, *rows = written(48)
    assert first.split() == TITLES
    assert rows[0] == "0123456789abcdef  relu(m=64)*3|so…    42  91.25%"
    assert max(map(len, rows)) <= 48


def test_optional_columns_are_left_out_and_named(written) -> None:
    *table, note = written(40, TITLES, ROWS, right=["seed", "test"], optional=["loss", "seed"])  # ROWS have no loss
    assert table[1] == "0123456789abcdef  relu(m=64)*3|…  91.25%"
    assert note == "not shown on 40 columns: seed"


@pytest.mark.parametrize("width", range(28, 60, 3))
def test_numbers_are_complete_or_left_out(written, width: int) -> None:
    titles, cells = ["run", "top 5", "parameters", "test"], ["0123456789abcdef", "99.00%", "1,234,567", "91.25%"]
    heading, titled, first, second, *notes = written(
        width,
        titles,
        [cells, ["mean", "", "", "9%"]],
        right=titles[1:],
        optional=["top 5", "parameters"],
        heading="2 runs",
    )
    assert heading == "2 runs"
    shown = [title for title in titles if title in titled]
    assert [title for title in titles if title not in shown] == (
        notes[0].partition(": ")[2].split(", ") if notes else []
    )
    assert first.split() == [cell for title, cell in zip(titles, cells, strict=True) if title in shown]
    assert second.split() == ["mean", "9%"]
    assert all(len(line) <= width for line in (titled, first, second))
    assert {"run", "test"} <= set(shown)


def test_width_is_read_from_the_output_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2, raising=False)
    descriptors = []
    monkeypatch.setattr(
        os, "get_terminal_size", lambda number: descriptors.append(number) or os.terminal_size((40, 24))
    )
    write_columns(TITLES, ROWS, right=["seed", "test"], optional=["seed"], err=True)
    assert descriptors == [2]
    written = capsys.readouterr()
    assert (written.out, written.err.splitlines()[-1]) == ("", "not shown on 40 columns: seed")


@pytest.mark.parametrize("err", [False, True])
def test_closed_stream_raises_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], err: bool
) -> None:
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stderr" if err else "stdout", None)
        write_columns(TITLES, ROWS, err=err)
    assert capsys.readouterr() == ("", "")


def test_section_is_a_line_above_its_rows(written) -> None:
    rows = [["a", *ROWS[0]], ["a", *ROWS[1]], ["b", *ROWS[1]]]
    options: dict[str, Any] = dict(right=["seed", "test"], section="part")
    assert written(None, ["part", *TITLES], rows, **options) == [
        "  run               layers                  seed    test",
        "a",
        "  0123456789abcdef  relu(m=64)*3|softmax*3    42  91.25%",
        "  fedcba9876543210  softmax                    7  90.00%",
        "b",
        "  fedcba9876543210  softmax                    7  90.00%",
    ]


def test_wrapped_column_continues_on_further_lines(written) -> None:
    lines = written(40, ["name", "text"], [["relu", "one two three four five six seven eight nine"]], wrap="text")
    assert lines == ["name  text", "relu  one two three four five six seven", "      eight nine"]


def test_column_is_cut_to_its_minimal_width_only_after_optional_ones_are_left_out(written) -> None:
    options: dict[str, Any] = dict(right=["seed", "test"], optional=["seed"], min_width=22)
    assert written(52, TITLES, ROWS, **options)[1:] == [
        "0123456789abcdef  relu(m=64)*3|softmax*3  91.25%",
        "fedcba9876543210  softmax                 90.00%",
        "not shown on 52 columns: seed",
    ]
