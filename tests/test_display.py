"""Progress: bars and lines on a terminal, lines only in piped output."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from favorit.display import Display

Open = Callable[..., Display]


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def display(out: io.StringIO) -> Open:
    def build(is_terminal: bool, delay: float = 0.0) -> Display:
        return Display(Console(file=out, force_terminal=is_terminal, width=200), delay)

    return build


def test_terminal_shows_text_count_and_rate_of_a_bar(display: Open, out: io.StringIO) -> None:
    with display(True) as shown:
        for done in (1, 2, 500, 1000):
            shown.bar("work", "measuring [1, 2]", done, 2000, unit="images", units_per_step=8)
    assert "measuring [1, 2]" in out.getvalue()
    assert "1,000/2,000" in out.getvalue()
    assert "images/s" in out.getvalue()


def test_bars_are_erased_at_the_end(display: Open, out: io.StringIO) -> None:
    with display(True) as shown:
        shown.bar("work", "measuring", 1, 2)
        assert "measuring" in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[2K")


def test_bars_are_erased_after_an_error(display: Open, out: io.StringIO) -> None:
    def fail() -> None:
        with display(True) as shown:
            shown.bar("work", "measuring", 1, 2)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert out.getvalue().rstrip().endswith("\x1b[2K")


def test_removed_bar_is_not_drawn_again(display: Open, out: io.StringIO) -> None:
    with display(True) as shown:
        shown.bar("first", "bar one", 1, 2)
        shown.remove("first")
        shown.remove("unknown")
        out.truncate(0)
        shown.bar("second", "bar two", 1, 2)
    assert "bar one" not in out.getvalue()
    assert "bar two" in out.getvalue()


def test_piped_output_has_lines_and_no_bars(display: Open, out: io.StringIO) -> None:
    with display(False) as shown:
        shown.bar("work", "measuring", 1, 2)
        shown.line("a line [bold] of any length " + "x" * 300)
        shown.piped_line("instead of a bar")
    assert out.getvalue().splitlines() == ["a line [bold] of any length " + "x" * 300, "instead of a bar"]


def test_terminal_has_no_piped_lines(display: Open, out: io.StringIO) -> None:
    with display(True) as shown:
        shown.line("stays")
        shown.piped_line("instead of a bar")
    assert "stays" in out.getvalue()
    assert "instead of a bar" not in out.getvalue()


@pytest.mark.parametrize(("delay", "is_shown"), [(0.0, True), (60.0, False)])
def test_bar_appears_after_the_delay(display: Open, out: io.StringIO, delay: float, is_shown: bool) -> None:
    with display(True, delay) as shown:
        shown.bar("work", "measuring", 1, 2)
    assert ("measuring" in out.getvalue()) == is_shown
    assert is_shown or out.getvalue() == ""
