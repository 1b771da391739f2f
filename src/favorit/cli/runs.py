"""`favorit runs`: what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

COLUMNS = {
    "id": "run",
    "status": "status",
    "data.name": "data",
    "layers": "layers",
    "model.position": "position",
    "seed": "seed",
    "epochs": "epochs",
    "test.accuracy": "test",
    "train_seconds_per_epoch": "s/epoch",
    "parameters": "parameters",
}
NUMBERS = ("seed", "epochs", "test.accuracy", "train_seconds_per_epoch", "parameters")


def runs(
    folder: Annotated[Path, typer.Argument(help="Where runs are kept.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each run, with every field.")] = False,
) -> None:
    """List the runs of a folder with their status, configuration and result.

    Examples: [bold]favorit runs[/bold], [bold]favorit runs elsewhere --json[/bold]
    """
    from favorit.cli.console import open_console, open_table
    from favorit.training.records import runs as read

    found = read(folder)
    if as_json:
        typer.echo(found.to_json(orient="records", lines=True).rstrip("\n"))
        return
    if found.empty:
        typer.echo(f"no runs in {folder}: 'favorit train --out {folder}' makes one")
        return
    shown = {column: title for column, title in COLUMNS.items() if column in found}
    table = open_table(**{title: "right" if column in NUMBERS else "left" for column, title in shown.items()})
    for row in found[list(shown)].itertuples(index=False):
        table.add_row(*(_written(column, value) for column, value in zip(shown, row, strict=True)))
    open_console().print(table, markup=False)


def _written(column: str, value: Any) -> str:
    if value is None or value != value:
        return ""
    if column.endswith("accuracy"):
        return f"{value:.2%}"
    if column.endswith("seconds_per_epoch"):
        return f"{value:.1f}"
    return f"{int(value):,}" if column in ("parameters", "epochs", "seed") else str(value)
