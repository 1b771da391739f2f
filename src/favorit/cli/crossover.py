"""`favorit bench crossover`: the token count from which linear attention pays on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.shared import Repeats, TableForm, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.bench.crossover import Crossing


@with_fields
def crossover(
    mixers: Annotated[
        list[str] | None,
        typer.Option(
            "--mixer", help="A mixer. Default: relu, 'relu(m=64)' and 'favor(m=64)'. Repeatable.", metavar="SPEC"
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    heads: Annotated[int, typer.Option(min=1, help="Heads.")] = 4,
    head_dim: Annotated[int, typer.Option(min=1, help="Head width.")] = 32,
    tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="A token count to measure, instead of the default grid. Repeatable.")
    ] = None,
    most_tokens: Annotated[
        int | None,
        typer.Option(min=2, help="The largest token count of the default grid. Default: 1024, or those of the advice."),
    ] = None,
    image: Annotated[int, typer.Option(min=1, help="Image side in pixels, for the advice.")] = 224,
    patch: Annotated[
        int | None,
        typer.Option(min=1, help="Patch side in pixels, for the advice. Default: 8, or more to fit --most-tokens."),
    ] = None,
    repeats: Repeats = 7,
    device: Annotated[str, typer.Option(help="cpu; other devices, such as cuda, are unverified.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Also write all times and memory as CSV.", metavar="FILE.csv")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the ratios against tokens.", metavar="FILE.png")
    ] = None,
    *,
    form: TableForm,
) -> None:
    """Find the token count from which linear mixers need less time, or less memory, than torch's fused softmax (SDPA).

    Examples: [bold]favorit bench crossover --figure crossover.png[/bold],
    [bold]favorit bench crossover --batch 1 --mixer relu --mixer "favor(m=64)" --image 32 --patch 2[/bold]
    """
    from favorit import measure
    from favorit.attention import MIXERS
    from favorit.bench.crossover import (
        MAX_TOKENS,
        check_device,
        crossings,
        default_grid,
        default_patch,
        measure_points,
        rows,
    )
    from favorit.bench.crossover_figure import draw, panels
    from favorit.bench.crossover_text import advice, describe_disturbances
    from favorit.charts.save import save_chart
    from favorit.cli.console import check_figures, check_outputs
    from favorit.cli.machine import reserve_machine
    from favorit.cli.progress import delayed_bar
    from favorit.errors import FavoritError
    from favorit.export import write_csv
    from favorit.process import keep_large_buffers

    if patch is None:
        patch = default_patch(image, most_tokens or MAX_TOKENS)
    if image % patch:
        raise FavoritError(f"--patch {patch} does not divide --image {image}: give a divisor")
    advised = 1 + (image // patch) ** 2
    most_tokens = most_tokens or max(MAX_TOKENS, advised)
    if advised > most_tokens:
        raise FavoritError(
            f"--image {image} --patch {patch} gives {advised} tokens, more than --most-tokens {most_tokens}: "
            "raise --most-tokens, or leave out --patch"
        )
    grid = sorted({*tokens, advised}) if tokens else default_grid(most_tokens, advised)
    check_outputs(out=out)
    for mixer in mixers or ():  # before the machine is reserved, which may take long
        MIXERS.canonical(mixer)
    check_device(device)
    check_figures(figure=figure)
    keep_large_buffers()
    console = form.open_console()
    sizes = dict(batch=batch, heads=heads, head_dim=head_dim, repeats=repeats)
    compared = mixers or ["relu", "relu(m=64)", "favor(m=64)"]
    with reserve_machine(console) as monitor, delayed_bar(console, "measuring") as listen:
        points = measure_points(compared, grid, **sizes, device=device, listen=listen)
    machine = measure.fingerprint()
    size = f"batch {batch}, {heads} heads of {head_dim}"
    title = f"Tokens from which a mixer beats SDPA\n{size}, {measure.describe_hardware(machine)}"
    sentence = advice(points, image, patch, advised)
    _write(form, f"{title}; in brackets: 95 % interval", crossings(points), grid)
    for line in (*describe_disturbances(points, repeats), sentence):
        console.print(line, markup=False, soft_wrap=True)
    if out is not None:
        write_csv(rows(points), out)
    if figure is not None:
        save_chart(draw(panels(points), title), figure)
    if form.as_json:
        report = {
            "environment": machine,
            **sizes,
            "advice": sentence,
            "crossings": [asdict(crossing) for crossing in crossings(points)],
            "points": [{**row, "rounds": point.rounds} for row, point in zip(rows(points), points, strict=True)],
            "foreign_load": monitor.json,
        }
        echo(json.dumps(report))


def _write(form: TableForm, heading: str, found: list[Crossing], grid: list[int]) -> None:
    from favorit.bench.crossover import CURVES
    from favorit.bench.crossover_text import describe_crossing

    cells = {(crossing.mixer, crossing.curve): crossing for crossing in found}
    mixers = dict.fromkeys(crossing.mixer for crossing in found)
    rows = [[mixer, *(describe_crossing(cells[mixer, curve], grid) for curve in CURVES)] for mixer in mixers]
    form.write(["mixer", *CURVES], rows, right=CURVES, heading=heading)
