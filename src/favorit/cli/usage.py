"""Help without the types of flags, and one-line messages for mistakes in options and arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from favorit.cli.complete import complete
from favorit.errors import valid_values


def build_command(app: typer.Typer) -> Any:
    """The root command, with completion of values. Help shows no type for flags, which take no value, and wraps each
    paragraph as a whole.
    """
    root = get_command(app)
    for path, command in walk(root):
        if command.help is not None:
            command.help = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
        help_option = command.get_help_option(typer.Context(command))
        for parameter in (*command.params, *([] if help_option is None else [help_option])):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            complete(path, parameter)
    return root


def walk(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The command and all its subcommands, each with its path, such as `study plan`; that of the root is empty."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from walk(each, f"{path} {name}".strip())


def message(error: TyperException, root: Any) -> str:
    """One line about a mistake in options or arguments, with the command that prints their help.

    If the mistake is a missing subcommand, the help itself, which has many lines.
    """
    text = error.format_message().strip()
    if "\n" in text or not text:
        return text
    problems: list[Any] = getattr(error.__cause__, "errors", list)()
    parameter: Any = getattr(error, "param", None)
    if parameter is not None:
        is_argument = parameter.param_type_name == "argument"
        name = parameter.display_name_raw if is_argument else parameter.opts[-1]
        if problems:
            text = f"{name} {problems[0]['input']} is not valid: {valid_values(problems)}"
        elif not error.message:
            text = f"{name} is missing"
    context: Any = getattr(error, "ctx", None)
    path = _command_path(root) if context is None else context.command_path
    return f"favorit: {text.rstrip('.')} (see {path} --help)"


def _command_path(root: Any) -> str:
    """The command that the command line names, as text."""
    names = ["favorit"]
    for argument in sys.argv[1:]:
        if argument in getattr(root, "commands", {}):
            root = root.commands[argument]
            names.append(argument)
    return " ".join(names)
