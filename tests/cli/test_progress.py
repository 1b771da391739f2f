"""A bar for what takes long, and silence for what does not."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from favorit.cli import progress


@pytest.mark.parametrize(
    ("terminal", "patience", "shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_a_bar_is_shown_on_a_terminal_once_work_is_long(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, patience: float, shown: bool
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", patience)
    out = io.StringIO()
    with progress.long_work(Console(file=out, force_terminal=terminal, width=80), "measuring") as listen:
        listen(1, 3)
        listen(3, 3)
    assert ("measuring" in out.getvalue()) == shown
    assert shown or out.getvalue() == ""


def test_the_bar_goes_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    out = io.StringIO()

    def fail() -> None:
        with progress.long_work(Console(file=out, force_terminal=True, width=80), "measuring") as listen:
            listen(1, 2)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert out.getvalue().rstrip().endswith("\x1b[2K"), "the line is erased"
