"""The option `--import FILE` of every command: imports a Python file that registers components."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

OPTION = Parameter(
    "import_files",
    Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Import this Python file first: it registers components of your own. Repeatable.",
        ),
    ],
)


def add_import_option(app: typer.Typer) -> None:
    """Adds the option to each command of the app and of its groups."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_import(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_import_option(group.typer_instance)


def _with_import(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(*, import_files: list[Path] | None = None, **values: Any) -> None:
        for file in import_files or ():
            from favorit.origins import import_file

            import_file(file)
        command(**values)

    declared = signature(command, eval_str=True)
    # typer reads the options from the signature.
    run.__signature__ = declared.replace(  # type: ignore[attr-defined]
        parameters=[*(each.replace(kind=Parameter.KEYWORD_ONLY) for each in declared.parameters.values()), OPTION]
    )
    return run
