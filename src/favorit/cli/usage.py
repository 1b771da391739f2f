"""Help without the types of flags, and one-line messages for mistakes in options and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from favorit.errors import valid_values


def build_command(app: typer.Typer) -> Any:
    """The root command. Its help and that of its subcommands show no type for flags, which take no value."""
    root = get_command(app)
    for command in _commands(root):
        help_option = command.get_help_option(typer.Context(command))
        for parameter in (*command.params, *([] if help_option is None else [help_option])):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
    return root


def _commands(command: Any) -> Iterator[Any]:
    """The command and all its subcommands."""
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from _commands(each)


def message(error: TyperException) -> str:
    """One line about a mistake in options or arguments, with the command that prints their help.

    If the mistake is a missing subcommand, the help itself, which has many lines.
    """
    text = error.format_message().strip()
    if "\n" in text or not text:
        return text
    problems: list[Any] = getattr(error.__cause__, "errors", list)()
    parameter: Any = getattr(error, "param", None)
    if parameter is not None:
        name = getattr(parameter, "metavar", None) if parameter.param_type_name == "argument" else parameter.opts[-1]
        if problems:
            text = f"{name} {problems[0]['input']} is not valid: {valid_values(problems)}"
        elif type(error).__name__ == "MissingParameter":
            text = f"{name} is missing"
    context: Any = getattr(error, "ctx", None)
    command = "favorit" if context is None else context.command_path
    return f"favorit: {text.rstrip('.')} (see {command} --help)"
