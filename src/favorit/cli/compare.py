"""`favorit compare`: compare two variants on the same test images."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.shared import TableForm, with_fields

if TYPE_CHECKING:
    from favorit.study.lookup import PublishedAccuracy
    from favorit.study.statistics import Comparison, Interval

FOLDERS = "The run folders of one variant, one for each seed, separated by commas."


@with_fields
def compare(
    a: Annotated[str, typer.Argument(help=FOLDERS, metavar="A")],
    b: Annotated[str, typer.Argument(help=FOLDERS, metavar="B")],
    *,
    form: TableForm,
) -> None:
    """Compare two variants image by image: accuracies, their difference with a 95 % interval, McNemar's test, and
    confounders.

    Runs that match a point of a built-in study are shown with its published accuracy.

    Examples: [bold]favorit compare runs/0123456789abcdef runs/fedcba9876543210[/bold],
    [bold]favorit compare runs/A0,runs/A1,runs/A2 runs/B0,runs/B1,runs/B2[/bold]
    """
    from favorit.study.statistics import compare as compare_runs

    found = compare_runs(_folders(a), _folders(b))
    if form.as_json:
        typer.echo(json.dumps(_as_json(found)))
        return
    console = form.open_console()
    sides = [(found.a, found.accuracy_a, found.published_a), (found.b, found.accuracy_b, found.published_b)]
    columns: dict[str, list[str]] = {}
    if any(published.references for _, _, published in sides):
        columns["published"] = [
            ", ".join(f"{reference.text}%" for reference in published.references) for _, _, published in sides
        ]
        columns["ours - published"] = [
            ", ".join(f"{reference.difference(100 * accuracy.mean):+.2f}" for reference in published.references)
            for _, accuracy, published in sides
        ]
    if found.flags_a or found.flags_b:
        columns["flags"] = [" ".join(flags) for flags in (found.flags_a, found.flags_b)]
    rows = []
    for number, (name, accuracy, _) in enumerate(sides):
        values = [column[number] for column in columns.values()]
        rows.append([name, str(accuracy.n), f"{accuracy.mean:.2%}", _interval(accuracy), *values])
    form.write(["variant", "runs", "test", "interval", *columns], rows, right=["runs", "test"])
    console.print(found.sentence, markup=False, soft_wrap=True)
    if found.p is not None:
        console.print(f"McNemar: p {f'= {found.p:.3g}' if found.p else '< 1e-300'}", soft_wrap=True)
    if min(found.accuracy_a.n, found.accuracy_b.n) == 1:
        console.print("a variant has only one run: the interval covers images, not other seeds", soft_wrap=True)
    if found.confounded:
        console.print(f"confounded by {'; '.join(found.confounded)}", markup=False, soft_wrap=True)
    for line in _published_lines(found, sides):
        console.print(line, markup=False, soft_wrap=True)


def _published_lines(found: Comparison, sides: list[tuple[str, Interval, PublishedAccuracy]]) -> list[str]:
    """Lines with the published difference, then lines that qualify the published accuracies."""
    lines = []
    for a, b, low, high in found.published_differences:
        points = f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}"
        lines.append(
            f"published difference: {points} points ({a.table} rows {a.row} and {b.row}, {a.place}; {a.source})"
        )
    for name, _, published in sides:
        if published.problem:
            lines.append(f"published numbers are not shown: {published.problem}")
        elif published.name and not published.references:
            lines.append(f"{name}: no published accuracy is shown because several points match: {published.name}")
        elif published.differs:
            lines.append(f"{name} differs from the published recipe: {', '.join(published.differs)}")
    return list(dict.fromkeys(lines))


def _as_json(found: Comparison) -> dict[str, object]:
    differences = [
        {"table": a.table, "rows": [a.row, b.row], "low": low, "high": high}
        for a, b, low, high in found.published_differences
    ]
    published = {
        "published_a": found.published_a.as_dict(),
        "published_b": found.published_b.as_dict(),
        "published_differences": differences,
    }
    return {**asdict(found), **published, "sentence": found.sentence}


def _folders(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _interval(accuracy: Interval) -> str:
    """The interval as text, clipped to [0, 1]: a symmetric interval over few seeds may exceed this range."""
    return (
        ""
        if accuracy.low is None or accuracy.high is None
        else f"{max(accuracy.low, 0):.2%} to {min(accuracy.high, 1):.2%}"
    )
