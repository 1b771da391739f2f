"""Options that several commands share: a single option is a type, a group is a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from favorit.errors import FavoritError

Workers = Annotated[
    int,
    typer.Option(
        min=1, help="Number of runs trained in parallel; the processes divide the CPU threads of this machine."
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the data sets (default: FAVORIT_DATA, else the user's cache).")
]


@dataclass
class Progress:
    """What a command has done so far. With `is_resumable`, completed work is on disk and the next call continues it."""

    is_resumable: bool = False

    @property
    def hint(self) -> str:
        """How to continue after an interruption, for the end of a message."""
        return "; completed work is kept: rerun the same command to resume" if self.is_resumable else ""


PROGRESS = Progress()  # of the command that this process runs


@dataclass(frozen=True)
class TableForm:
    """The options of a command that prints a table: how it is written."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with every field.")] = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False
    as_latex: Annotated[bool, typer.Option("--latex", help="Print the table as LaTeX (booktabs).")] = False

    @property
    def name(self) -> str:
        """`text`, `json`, `csv`, `markdown` or `latex`. Raises an error if several are given."""
        given = [name for name in ("json", "csv", "markdown", "latex") if getattr(self, f"as_{name}")]
        if len(given) > 1:
            raise FavoritError(f"{' and '.join(f'--{name}' for name in given)} are given: choose one form of the table")
        return given[0] if given else "text"


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter that is a dataclass replaced by one option for each field."""
    flat_parameters: list[Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in signature(command, eval_str=True).parameters.values():
        if not is_dataclass(parameter.annotation):
            flat_parameters.append(parameter)
            continue
        fields = signature(parameter.annotation, eval_str=True).parameters  # type: ignore[arg-type]
        groups[parameter.name] = (parameter.annotation, list(fields))
        flat_parameters += fields.values()

    @wraps(command)
    def flat(**values: Any) -> None:
        grouped = {
            name: group(**{field: values.pop(field) for field in fields}) for name, (group, fields) in groups.items()
        }
        command(**grouped, **values)

    # typer reads the options from the signature.
    flat.__signature__ = Signature([each.replace(kind=each.KEYWORD_ONLY) for each in flat_parameters])  # type: ignore[attr-defined]
    return flat
