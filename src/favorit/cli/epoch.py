"""`favorit bench epoch`: one training epoch as users run it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def epoch(
    data: Annotated[str | None, typer.Option(help="A data set ('favorit data list'); cifar10 without it.")] = None,
    preset: Annotated[str, typer.Option(help="A model ('favorit list presets').")] = "vit-64",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any field, as section.key=value. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    devices: Annotated[int, typer.Option(help="Processes that share each batch (DDP).", min=1)] = 1,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Time one whole training epoch: seconds, the input pipeline's share, the share of this machine's matrix-product
    limit, memory.

    Examples: [bold]favorit bench epoch --data cifar10 --preset vit-64 --set "data.augment=flip|rotate(5)"[/bold],
    [bold]favorit bench epoch --set train.precision=bf16 --devices 2[/bold]
    """
    from favorit import measure
    from favorit.bench.epoch import epoch_cost
    from favorit.cli.compose import compose
    from favorit.cli.console import open_console, open_table
    from favorit.cli.measuring import alone
    from favorit.process import keep_large_buffers

    keep_large_buffers()
    usual = ["data.name=cifar10"] if data is None else []
    config = compose(None, preset, [*usual, *(settings or [])], data=data, epochs=None, seed=None)
    console = open_console(stderr=as_json)
    with alone(console) as watch:
        cost = epoch_cost(config, data_dir, devices)
    if cost is None:  # this is not the first of several processes
        return
    machine = measure.fingerprint()
    if as_json:
        typer.echo(
            json.dumps({**asdict(cost), "environment": {**machine, "processes": devices}, "foreign_load": watch.json})
        )
        return
    shared = f"{devices} processes on " if devices > 1 else ""
    table = open_table(
        f"{preset} on {config.data.name}: one epoch, {shared}{machine['threads']} threads, {machine['processor']}",
        what="left",
        measured="right",
    )
    table.add_row("images", f"{cost.images:,}")
    table.add_row("seconds", f"{cost.seconds:.1f}")
    table.add_row("images per second", f"{cost.images / cost.seconds:,.0f}")
    table.add_row("input pipeline", f"{cost.pipeline_share:.1%}")
    table.add_row("matrix-product limit, GFLOP/s", f"{cost.gemm_gflops:.0f}")
    table.add_row("share of that limit", f"{cost.gemm_share:.2f}")
    table.add_row("slowdown on numbers another thread wrote", f"{cost.handing_over:.1f}x")
    table.add_row("peak memory, MiB", f"{cost.peak_memory / 2**20:,.0f}")
    console.print(table, markup=False)
