"""`favorit predict`: the class of image files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.", metavar="IMAGE...")],
    top: Annotated[int, typer.Option(help="How many classes to name for each image.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each image.")] = False,
) -> None:
    """Name the class of images, with its probability.

    Examples: [bold]favorit predict runs/0123456789abcdef cat.png[/bold],
    [bold]favorit predict runs/0123456789abcdef photos/ --top 3 --json[/bold]
    """
    from favorit.cli.console import open_console, open_table
    from favorit.training.run import predict_files

    found = predict_files(run, images, top)
    if as_json:
        for path, classes in found.items():
            typer.echo(json.dumps({"image": str(path), "classes": [{"class": name, "probability": p} for name, p in classes]}))
        return
    table = open_table(**{"image": "left", "class": "left", "probability": "right"})
    for path, classes in found.items():
        for rank, (name, probability) in enumerate(classes):
            table.add_row(str(path) if rank == 0 else "", name, f"{probability:.2%}")
    open_console().print(table, markup=False)
