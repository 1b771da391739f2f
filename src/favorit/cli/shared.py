"""Options that several commands share: a single option is a type, a group is a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

Workers = Annotated[
    int,
    typer.Option(
        min=1, help="Number of runs trained in parallel; the processes divide the CPU threads of this machine."
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the data sets (default: FAVORIT_DATA, else the user's cache).")
]


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its first parameter, a dataclass, replaced by one option for each field."""
    first, *rest = signature(command, eval_str=True).parameters.values()
    fields = signature(first.annotation, eval_str=True).parameters

    @wraps(command)
    def flat(**values: Any) -> None:
        command(first.annotation(**{name: values.pop(name) for name in fields}), **values)

    # typer reads the options from the signature.
    flat.__signature__ = Signature([each.replace(kind=each.KEYWORD_ONLY) for each in (*fields.values(), *rest)])  # type: ignore[attr-defined]
    return flat
