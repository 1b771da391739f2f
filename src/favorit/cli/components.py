"""`favorit list`: the available components."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from favorit.cli.shared import TableForm, with_fields
from favorit.terminal import echo


@with_fields
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="The kind: mixers, kernels, positions, stems, heads, locals, layouts, presets, fields or another. "
            "Default: all.",
            metavar="KIND",
        ),
    ] = None,
    *,
    form: TableForm,
) -> None:
    """List the components of models, data and training with parameters and defaults; `fields` lists the --set fields.

    Examples: [bold]favorit list[/bold], [bold]favorit list kernels[/bold], [bold]favorit list presets --json[/bold]
    """
    from favorit.catalog import KINDS, describe, list_components
    from favorit.cli.complete import store_names
    from favorit.data import CARDS

    kinds = KINDS if kind is None else (kind,)
    found = {kind: {name: describe(kind, name) for name in list_components(kind)} for kind in kinds}
    if kind is None:
        store_names({**found, "kinds": KINDS, "datasets": CARDS})
    if form.as_json:
        echo(json.dumps(found))
        return
    rows = [(kind, name, text) for kind, names in found.items() for name, text in names.items()]
    form.write(["kind", "name", "description"], rows, section="kind", wrap="description")
