"""`favorit compare`: two variants on the same test images."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from favorit.study.statistics import Interval

FOLDERS = "A run's folder, or several separated by commas: the seeds of one variant."


def compare(
    a: Annotated[str, typer.Argument(help=FOLDERS, metavar="A")],
    b: Annotated[str, typer.Argument(help=FOLDERS, metavar="B")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Compare two variants image by image: accuracies, their difference with its 95 % interval, McNemar's test, and what else differs.

    Examples: [bold]favorit compare runs/0123456789abcdef runs/fedcba9876543210[/bold],
    [bold]favorit compare runs/A0,runs/A1,runs/A2 runs/B0,runs/B1,runs/B2[/bold]
    """
    from favorit.cli.console import open_console, open_table
    from favorit.study.statistics import compare as compare_runs

    found = compare_runs(_folders(a), _folders(b))
    if as_json:
        typer.echo(json.dumps({**asdict(found), "sentence": found.sentence}))
        return
    console = open_console()
    table = open_table(variant="left", runs="right", test="right", interval="left")
    for name, accuracy in ((found.a, found.accuracy_a), (found.b, found.accuracy_b)):
        table.add_row(name, str(accuracy.n), f"{accuracy.mean:.2%}", _interval(accuracy))
    console.print(table, markup=False)
    console.print(found.sentence, markup=False, soft_wrap=True)
    if found.p is not None:
        console.print(f"McNemar: p = {found.p:.3g}", soft_wrap=True)
    if min(found.accuracy_a.n, found.accuracy_b.n) == 1:
        console.print("one run of a variant: the interval is over images and says nothing of other seeds", soft_wrap=True)
    if found.confounded:
        console.print(f"confounded by {'; '.join(found.confounded)}", markup=False, soft_wrap=True)


def _folders(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _interval(accuracy: Interval) -> str:
    """An accuracy lies between 0 and 1, whatever a symmetric interval of few seeds says."""
    return "" if accuracy.low is None or accuracy.high is None else f"{max(accuracy.low, 0):.2%} to {min(accuracy.high, 1):.2%}"
