"""`favorit bench approximation`: the error of kernels relative to softmax attention."""

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

# Shares of lost rows are reported only above this.
MIN_REPORTED_SHARE = 5e-4


def approximation(
    head_dim: Annotated[int, typer.Option(help="Head width.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens.")] = 128,
    stds: Annotated[
        list[float] | None,
        typer.Option("--std", help="Standard deviation of q and k. Default: 0.25, 0.5 and 1. Repeatable."),
    ] = None,
    m: Annotated[
        str,
        typer.Option(
            help="Feature counts for kernels that need m and do not fix it. relu needs none; 'relu(m=64)' fixes it.",
            metavar="M,M,...",
        ),
    ] = "16,32,64,128,256,512,1024",
    kernels: Annotated[
        list[str] | None,
        typer.Option(
            "--kernel",
            help="A kernel, such as 'favor(orthogonal=False)' or trigonometric. Default: ten kernels. Repeatable.",
            metavar="SPEC",
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws of q, k, v and random features.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the table as CSV.", metavar="FILE.csv")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw the error against m.", metavar="FILE.png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Measure how far the attention of kernels is from softmax attention.

    The error of the output is reported against the number of features m, with averaging all values (uniform) as the
    baseline.

    Examples: [bold]favorit bench approximation --figure error.png[/bold],
    [bold]favorit bench approximation --head-dim 16 --tokens 65 --std 1 --kernel favor --kernel "relu(m=64)"[/bold]
    """
    from favorit.bench.approximation import SERIES, Setting, approximate, conclude
    from favorit.bench.approximation_figure import draw, panels
    from favorit.cli.console import check_figures, check_outputs, open_console
    from favorit.cli.machine import reserve_machine
    from favorit.cli.progress import delayed_bar
    from favorit.export import save_figure, write_csv

    check_outputs(out=out)
    check_figures(figure=figure)
    console = open_console(stderr=as_json)
    setting = Setting(head_dim, tokens, tuple(stds or Setting.stds), parse_counts("--m", m), draws, seed)
    with reserve_machine(console) as monitor, delayed_bar(console, "measuring") as listen:
        points = approximate(setting, kernels or SERIES, listen=listen)
    content = panels(points)
    size = f"head width {head_dim}, {tokens} tokens"
    for panel in content:
        console.print(f"[bold]q, k of standard deviation {panel.std:g}, {size}: error, median of {draws} draws")
        _print_panel(console, panel, [point for point in points if point.std == panel.std])
        console.print()
    console.print(conclude(points), markup=False, soft_wrap=True)
    if out is not None:
        write_csv([{**asdict(point), "m": point.m or ""} for point in points], out)
    if figure is not None:
        save_figure(draw(content, f"Kernels and softmax attention\n{size}"), figure)
    if as_json:
        report = {
            **asdict(setting),
            "conclusion": conclude(points),
            "points": [asdict(point) for point in points],
            "foreign_load": monitor.json,
        }
        typer.echo(json.dumps(report))


def _print_panel(console: Console, panel: Panel, points: Sequence[Point]) -> None:
    """Prints a table of kernels by m, a line for kernels without m, and a line for lost rows."""
    from favorit.cli.console import open_table

    counts = sorted({m for curve in panel.curves for m in curve.m})
    table = open_table(**{"m": "left", **{str(count): "right" for count in counts}})
    for curve in (curve for curve in panel.curves if curve.m):
        cells = dict(zip(curve.m, curve.error, strict=True))
        table.add_row(curve.kernel, *(_short(cells[count]) if count in cells else "" for count in counts))
    if counts:
        console.print(table, markup=False)
    without_m = {"uniform": panel.uniform, **{curve.kernel: curve.error[0] for curve in panel.curves if not curve.m}}
    console.print(
        "without m: " + ", ".join(f"{name} {_short(error)}" for name, error in without_m.items()),
        markup=False,
        soft_wrap=True,
    )
    # Sorted by share, so that the largest share of a kernel overwrites the others.
    lost = {
        kernel: share
        for share, kernel in sorted((point.lost, point.kernel) for point in points)
        if share > MIN_REPORTED_SHARE
    }
    if lost:
        rows = ", ".join(f"{kernel} in up to {share:.1%}" for kernel, share in lost.items())
        console.print(f"rows whose weights do not sum to a positive number: {rows}", markup=False, soft_wrap=True)


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def parse_counts(option: str, text: str) -> tuple[int, ...]:
    """'128,64,64' -> (64, 128): sorted, without duplicates."""
    from favorit.errors import FavoritError

    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise FavoritError(
            f"{option} {text} is not valid: give whole numbers of at least 1, separated by commas, such as 64,128,256"
        )
    return tuple(sorted({int(part) for part in parts}))
