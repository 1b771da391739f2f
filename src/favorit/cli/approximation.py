"""`favorit bench approximation`: the error of kernels relative to softmax attention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.shared import TableForm, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

    from favorit.bench.approximation import Point
    from favorit.bench.approximation_figure import Panel

# Shares of lost rows are reported only above this.
MIN_REPORTED_SHARE = 5e-4


@with_fields
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
    *,
    form: TableForm,
) -> None:
    """Measure how far the attention of kernels is from softmax attention.

    The error of the output is reported against the number of features m, with averaging all values (uniform) as the
    baseline.

    Examples: [bold]favorit bench approximation --figure error.png[/bold],
    [bold]favorit bench approximation --head-dim 16 --tokens 65 --std 1 --kernel favor --kernel "relu(m=64)"[/bold]
    """
    from favorit.bench.approximation import SERIES, Setting, approximate, conclude, series
    from favorit.bench.approximation_figure import draw, panels
    from favorit.charts.save import save_chart
    from favorit.cli.console import check_figures, check_outputs
    from favorit.cli.machine import reserve_machine
    from favorit.cli.progress import delayed_bar
    from favorit.export import write_csv

    check_outputs(out=out)
    check_figures(figure=figure)
    console = form.open_console()
    setting = Setting(head_dim, tokens, tuple(stds or Setting.stds), parse_counts("--m", m), draws, seed)
    series(setting, kernels or SERIES)  # before the machine is reserved, which may take long
    with reserve_machine(console) as monitor, delayed_bar(console, "measuring") as listen:
        points = approximate(setting, kernels or SERIES, listen=listen)
    content = panels(points)
    size = f"head width {head_dim}, {tokens} tokens"
    _write(form, content, f"error of {size}, median of {draws} draws")
    for panel in content:
        _print_lost(console, [point for point in points if point.std == panel.std])
    console.print(conclude(points), markup=False, soft_wrap=True)
    if out is not None:
        write_csv([{**asdict(point), "m": point.m or ""} for point in points], out)
    if figure is not None:
        save_chart(draw(content, f"Kernels and softmax attention\n{size}"), figure)
    if form.as_json:
        report = {
            **asdict(setting),
            "conclusion": conclude(points),
            "points": [asdict(point) for point in points],
            "foreign_load": monitor.json,
        }
        echo(json.dumps(report))


def _write(form: TableForm, content: Sequence[Panel], heading: str) -> None:
    """Prints kernels by m for each standard deviation of q and k. Kernels without m have their own column."""
    counts = sorted({m for panel in content for curve in panel.curves for m in curve.m})
    rows = []
    for panel in content:
        section = f"q, k of standard deviation {panel.std:g}" if form.is_text else f"{panel.std:g}"
        rows.append([section, "uniform", _short(panel.uniform), *[""] * len(counts)])
        for curve in panel.curves:
            cells = dict(zip(curve.m, map(_short, curve.error), strict=True)) if curve.m else {}
            without_m = "" if curve.m else _short(curve.error[0])
            rows.append([section, curve.kernel, without_m, *(cells.get(count, "") for count in counts)])
    titles = ["std", "kernel", "without m", *(f"m={count}" for count in counts)]
    form.write(titles, rows, right=["std", *titles[2:]], heading=heading, section="std")


def _print_lost(console: Console, points: Sequence[Point]) -> None:
    """Prints the kernels that lose rows at one standard deviation, if there are any."""
    # Sorted by share, so that the largest share of a kernel overwrites the others.
    lost = {
        kernel: share
        for share, kernel in sorted((point.lost, point.kernel) for point in points)
        if share > MIN_REPORTED_SHARE
    }
    if lost:
        rows = ", ".join(f"{kernel} in up to {share:.1%}" for kernel, share in lost.items())
        console.print(
            f"std {points[0].std:g}: rows whose weights do not sum to a positive number: {rows}",
            markup=False,
            soft_wrap=True,
        )


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
