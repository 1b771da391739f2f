"""`favorit list`: the available components."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="The kind: mixers, kernels, positions, stems, heads, locals, layouts, presets, fields or another. "
            "Default: all."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the components of models, data and training with parameters and defaults; `fields` lists the --set fields.

    Examples: [bold]favorit list[/bold], [bold]favorit list kernels[/bold], [bold]favorit list presets --json[/bold]
    """
    from rich.table import Table

    from favorit.catalog import KINDS, describe, list_components
    from favorit.cli.console import open_console

    kinds = KINDS if kind is None else (kind,)
    found = {kind: {name: describe(kind, name) for name in list_components(kind)} for kind in kinds}
    if as_json:
        typer.echo(json.dumps(found))
        return
    for kind, names in found.items():
        table = Table(
            title=kind, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2, 0, 0)
        )
        for name, text in names.items():
            table.add_row(name, text)
        open_console().print(table, "", markup=False)
