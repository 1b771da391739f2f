"""Plain text on the terminal. Every command prints through `echo`, or through a `SafeConsole`."""

from __future__ import annotations

import re

import typer

# Control characters except tab and line feed, marks that change the direction of text, and surrogates, which stand for
# bytes of a file name that are not UTF-8.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with control characters written as escapes such as \x1b.

    Names of classes, files and runs may come from a stranger. A terminal would obey their escape sequences.
    """
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """The visible text, with line feeds as escapes too."""
    return visible(text).replace("\n", "\\n")


def echo(text: str = "", *, err: bool = False) -> None:
    """Prints text and a line feed to stdout, or to stderr."""
    typer.echo(visible(text), err=err)
