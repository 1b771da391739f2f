"""Options that several commands share: a single option is a type, a group is a dataclass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from favorit.cli.columns import one_line, write_columns
from favorit.errors import FavoritError
from favorit.export import render_table
from favorit.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

Workers = Annotated[
    int,
    typer.Option(
        min=1, help="Number of runs trained in parallel; the processes divide the CPU threads of this machine."
    ),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Skip image files of a folder that cannot be read, and list them. Short for data.skip_unreadable=True.",
    ),
]
RUN = "A run: its folder or packed file, or the start of its ID or name."
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder in which a run is looked up by its ID or name.")]
DataDir = Annotated[
    Path | None, typer.Option(help="The folder for data sets; default: FAVORIT_DATA, else the user's cache.")
]
Repeats = Annotated[
    int,
    typer.Option(
        min=1, help="Timed rounds, interleaved. Undecided ratios are measured in up to 3 times as many (at least 6)."
    ),
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


def _form(name: str, help: str) -> Any:
    return typer.Option(f"--{name}", help=help, rich_help_panel="Form of the table")


@dataclass(frozen=True)
class TableForm:
    """How a command prints its table: aligned text, or the form that one of these options names.

    In every form but text, only the table (or the JSON) goes to stdout. Headings, sentences and further tables go to
    stderr.
    """

    as_json: Annotated[bool, _form("json", "Print JSON with every field; all else goes to stderr.")] = False
    as_csv: Annotated[bool, _form("csv", "Print the (main) table as CSV; all else goes to stderr.")] = False
    as_markdown: Annotated[bool, _form("markdown", "Print the (main) table as Markdown.")] = False
    as_latex: Annotated[bool, _form("latex", "Print the (main) table as LaTeX (booktabs).")] = False

    def __post_init__(self) -> None:
        given = [field.name.removeprefix("as_") for field in fields(self) if getattr(self, field.name)]
        if len(given) > 1:
            raise FavoritError(f"{' and '.join(f'--{name}' for name in given)} are given: choose one form of the table")

    @property
    def is_text(self) -> bool:
        return self == TableForm()

    def open_console(self) -> Console:
        """The console for sentences and progress: stdout if the table is text, else stderr."""
        from favorit.cli.console import open_console

        return open_console(stderr=not self.is_text)

    def say(self, sentence: str = "") -> None:
        """Prints a sentence: to stdout if the table is text, else to stderr."""
        echo(sentence, err=not self.is_text)

    def write(
        self,
        titles: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Collection[str] = (),
        heading: str | None = None,
        is_main: bool = True,
        **layout: Any,
    ) -> None:
        """Prints a table (see `write_columns` for `layout`). A table that is not the main one of its command is always
        text.
        """
        if self.is_text or self.as_json or not is_main:
            write_columns(titles, rows, right=right, heading=heading, err=not self.is_text, **layout)
            return
        if heading is not None:
            self.say(heading)
        form = "csv" if self.as_csv else "markdown" if self.as_markdown else "latex"
        echo(render_table(titles, ([one_line(cell) for cell in row] for row in rows), form, right))


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter that is a dataclass replaced by one option for each field."""
    flat_parameters: list[Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in signature(command, eval_str=True).parameters.values():
        if not is_dataclass(parameter.annotation):
            flat_parameters.append(parameter)
            continue
        options = signature(parameter.annotation, eval_str=True).parameters  # type: ignore[arg-type]
        groups[parameter.name] = (parameter.annotation, list(options))
        flat_parameters += options.values()

    @wraps(command)
    def flat(**values: Any) -> None:
        grouped = {
            name: group(**{option: values.pop(option) for option in options})
            for name, (group, options) in groups.items()
        }
        command(**grouped, **values)

    # typer reads the options from the signature.
    flat.__signature__ = Signature([each.replace(kind=each.KEYWORD_ONLY) for each in flat_parameters])  # type: ignore[attr-defined]
    return flat
