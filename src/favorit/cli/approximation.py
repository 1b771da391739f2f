"""`favorit bench approximation`: how far kernels are from softmax attention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from favorit.bench.approximation import Point
    from favorit.bench.approximation_figure import Panel

# Of a smaller share of lost rows nothing is said.
WORTH_SAYING = 5e-4


def approximation(
    head_dim: Annotated[int, typer.Option(help="Head width.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens.")] = 128,
    stds: Annotated[
        list[float] | None,
        typer.Option("--std", help="Standard deviation of q and k; 0.25, 0.5 and 1 without it. Repeatable."),
    ] = None,
    m: Annotated[
        str,
        typer.Option(
            help="Numbers of features, for kernels that need some and leave them open (relu does not: 'relu(m=64)').",
            metavar="M,M,...",
        ),
    ] = "16,32,64,128,256,512,1024",
    kernels: Annotated[
        list[str] | None,
        typer.Option(
            "--kernel", help="A kernel such as 'favor(orthogonal=False)', or trigonometric. Repeatable.", metavar="SPEC"
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws of q, k, v and random features.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Decides the draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as CSV.", metavar="FILE.csv")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw error against m.", metavar="FILE.png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Measure the error of each kernel's attention to softmax attention against m, beside averaging all values
    (uniform).

    Examples: [bold]favorit bench approximation --figure error.png[/bold],
    [bold]favorit bench approximation --head-dim 16 --tokens 65 --std 1 --kernel favor --kernel "relu(m=64)"[/bold]
    """
    from favorit.bench.approximation import SERIES, Setting, approximate, conclude
    from favorit.bench.approximation_figure import draw, panels, save
    from favorit.bench.speed import write_csv
    from favorit.cli.console import check_pictures, check_places, open_console
    from favorit.cli.measuring import alone
    from favorit.cli.progress import long_work

    check_places(out=out)
    check_pictures(figure=figure)
    console = open_console(stderr=as_json)
    setting = Setting(head_dim, tokens, tuple(stds or Setting.stds), numbers("--m", m), draws, seed)
    with alone(console) as watch, long_work(console, "measuring") as listen:
        points = approximate(setting, kernels or SERIES, listen=listen)
    content = panels(points)
    size = f"head width {head_dim}, {tokens} tokens"
    for panel in content:
        console.print(f"[bold]q, k of standard deviation {panel.std:g}, {size}: error, median of {draws} draws")
        _show(console, panel, [point for point in points if point.std == panel.std])
        console.print()
    console.print(conclude(points), markup=False, soft_wrap=True)
    if out is not None:
        write_csv([{**asdict(point), "m": point.m or ""} for point in points], out)
    if figure is not None:
        save(draw(content, f"Kernels against softmax attention\n{size}"), figure)
    if as_json:
        found = [asdict(point) for point in points]
        typer.echo(
            json.dumps({**asdict(setting), "conclusion": conclude(points), "points": found, "foreign_load": watch.json})
        )


def _show(console: Console, panel: Panel, points: Sequence[Point]) -> None:
    """A row for each kernel and a column for each m; what has no m in one line, and what lost rows in another."""
    from favorit.cli.console import open_table

    counts = sorted({m for curve in panel.curves for m in curve.m})
    table = open_table(**{"m": "left", **{str(count): "right" for count in counts}})
    for curve in (curve for curve in panel.curves if curve.m):
        cells = dict(zip(curve.m, curve.error, strict=True))
        table.add_row(curve.kernel, *(_short(cells[count]) if count in cells else "" for count in counts))
    if counts:
        console.print(table, markup=False)
    flat = {"uniform": panel.uniform, **{curve.kernel: curve.error[0] for curve in panel.curves if not curve.m}}
    console.print(
        "without m: " + ", ".join(f"{name} {_short(error)}" for name, error in flat.items()),
        markup=False,
        soft_wrap=True,
    )
    # In ascending order, so that of the points of a kernel the one that lost most is kept.
    lost = {
        kernel: share
        for share, kernel in sorted((point.lost, point.kernel) for point in points)
        if share > WORTH_SAYING
    }
    if lost:
        rows = ", ".join(f"{kernel} in up to {share:.1%}" for kernel, share in lost.items())
        console.print(f"rows whose weights do not sum to a positive number: {rows}", markup=False, soft_wrap=True)


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def numbers(option: str, text: str) -> tuple[int, ...]:
    """'64,128' -> (64, 128), ascending and each once."""
    from favorit.errors import FavoritError

    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise FavoritError(
            f"{option} {text} is not valid: whole numbers of at least 1, separated by commas, such as 64,128,256"
        )
    return tuple(sorted({int(part) for part in parts}))
