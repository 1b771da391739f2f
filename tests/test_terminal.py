"""Text from strangers on the terminal: control characters are shown, not obeyed."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from favorit.cli.console import open_console
from favorit.cli.main import main
from favorit.display import Display, SafeConsole
from favorit.terminal import one_line, visible

SRC = Path(__file__).parents[1] / "src" / "favorit"
EVIL = "a\x1b[2J\x1b]0;title\x07\r\x9b31m\u202eb"
SHOWN = r"a\x1b[2J\x1b]0;title\x07\r\x9b31m\u202eb"
IN_RICH = SHOWN.replace(r"\x07\r", "")  # rich removes these two
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


def run(monkeypatch, capfd, *arguments: str | Path) -> tuple[str, str]:
    """(stdout, stderr) of a command."""
    monkeypatch.setattr(sys, "argv", ["favorit", *map(str, arguments)])
    with pytest.raises(SystemExit):
        main()
    return capfd.readouterr()


def test_control_characters_become_escapes():
    assert visible(EVIL) == SHOWN
    assert visible("tab\tline\nñ 猫 🐈 \\x1b") == "tab\tline\nñ 猫 🐈 \\x1b"
    assert visible("photo\udcff.png") == r"photo\udcff.png"
    assert one_line("a\nb") == r"a\nb"


def test_console_keeps_its_own_colors_and_shows_those_of_text():
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, color_system="standard", width=200, highlight=False)
    console.print(EVIL, style="red", markup=False)
    console.print(EVIL, markup=False)
    written = file.getvalue()
    assert written.count(IN_RICH) == 2
    assert "\x1b[31m" in written  # red
    assert not RAW.search(re.sub(r"\x1b\[[0-9;]*m", "", written))


def test_progress_shows_control_characters_of_its_text():
    file = io.StringIO()
    with Display(SafeConsole(file=file, force_terminal=True, width=200)) as display:
        display.bar("run", EVIL, 1, 2)
        display.line(EVIL)
    written = file.getvalue()
    assert written.count(r"a\x1b[2J") >= 2
    assert "\x1b[2J" not in written
    assert "\x9b" not in written


def test_piped_console_is_safe(capsys):
    open_console().print(EVIL, markup=False)
    assert capsys.readouterr().out == f"{IN_RICH}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", f"runs/{EVIL}"],
        ["show", EVIL],
        ["show", "vit-64", "--set", f"model.layout={EVIL}"],
        ["show", "vit-64", f"--{EVIL}"],
        [EVIL],
        ["study", "status", EVIL],
        ["runs", EVIL],
        ["runs", "list", "--where", EVIL],
        ["compare", EVIL, "b"],
        ["predict", EVIL, "x.png"],
        ["data", "fetch", f"{EVIL}\nsecond line"],
        ["train", "--config", EVIL],
    ],
    ids=lambda command: visible(command[0]),
)
def test_errors_show_control_characters_of_the_input(monkeypatch, capfd, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    out, err = run(monkeypatch, capfd, *command)
    assert not RAW.search(out + err), out + err
    assert len((out + err).splitlines()) == 1


def test_only_one_module_prints():
    """Text that is printed elsewhere would reach the terminal as it is."""
    found = [
        f"{path.relative_to(SRC)}: {call}"
        for path in SRC.rglob("*.py")
        if path.name not in ("terminal.py", "display.py", "golden.py")
        for call in re.findall(r"typer\.s?echo\(|(?<![\w.])print\((?!flush)|(?<!Safe)\bConsole\(", path.read_text())
    ]
    assert found == []
