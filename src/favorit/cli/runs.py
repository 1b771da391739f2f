"""`favorit runs`: what is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

# What is shown of a run: its column, the title, and how a value is written.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "id": ("run", str),
    "status": ("status", str),
    "data.name": ("data", str),
    "layers": ("layers", str),
    "model.position": ("position", str),
    "seed": ("seed", "{:,}".format),
    "epochs": ("epochs", "{:,}".format),
    "test.accuracy": ("test", "{:.2%}".format),
    "train_seconds_per_epoch": ("s/epoch", "{:.1f}".format),
    "parameters": ("parameters", "{:,}".format),
}


def runs(
    folder: Annotated[Path, typer.Argument(help="Where runs are kept.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each run, with every field.")] = False,
) -> None:
    """List the runs of a folder with their status, configuration and result.

    Examples: [bold]favorit runs[/bold], [bold]favorit runs elsewhere --json[/bold]
    """
    from favorit.cli.columns import write_columns
    from favorit.training.records import rows

    found = rows(folder)
    if as_json:
        every = dict.fromkeys(column for row in found for column in row)
        typer.echo("\n".join(json.dumps({column: row.get(column) for column in every}) for row in found))
        return
    if not found:
        typer.echo(f"no runs in {folder}: 'favorit train --out {folder}' makes one")
        return
    titles = [title for title, _ in COLUMNS.values()]
    right = [title for title, written in COLUMNS.values() if written is not str]
    write_columns(titles, (_written(row) for row in found), right=right)


def _written(row: dict[str, Any]) -> list[str]:
    return ["" if (value := row.get(column)) is None else write(value) for column, (_, write) in COLUMNS.items()]
