"""`favorit evaluate`: a finished run on its test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder, such as runs/0123456789abcdef.", metavar="RUN")],
    data_dir: Annotated[Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compute the test metrics of a run's weights anew: accuracy, top 5, loss, calibration, and each class.

    Example: [bold]favorit evaluate runs/0123456789abcdef[/bold]
    """
    from favorit.cli.console import open_console
    from favorit.cli.tables import class_table
    from favorit.training.run import evaluate_run

    found, classes = evaluate_run(run, data_dir)
    if as_json:
        typer.echo(json.dumps({"run": str(run), "classes": classes, **found}))
        return
    console = open_console()
    overall = "accuracy {accuracy:.2%}   top 5 {top5:.2%}   loss {loss:.4f}   calibration error {calibration_error:.4f}".format(**found)
    console.print(overall, soft_wrap=True)
    console.print(class_table(found, classes), markup=False)
