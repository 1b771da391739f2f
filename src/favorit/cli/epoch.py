"""`favorit bench epoch`: the cost of one training epoch as users run it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from favorit.cli.shared import DataDir, TableForm, with_fields
from favorit.terminal import echo


@with_fields
def epoch(
    data: Annotated[str | None, typer.Option(help="A data set ('favorit data list'). Default: cifar10.")] = None,
    preset: Annotated[str, typer.Option(help="A model ('favorit list presets').")] = "vit-64",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any field, such as train.batch_size=64. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    devices: Annotated[int, typer.Option(help="Number of processes that share each batch (DDP).", min=1)] = 1,
    repeats: Annotated[int, typer.Option(help="Number of timed epochs.", min=1)] = 3,
    data_dir: DataDir = None,
    *,
    form: TableForm,
) -> None:
    """Time whole training epochs.

    Reports the seconds of an epoch (median, fastest and slowest), the share of the input pipeline, the achieved share
    of this machine's matrix-product limit, the cross-core cache penalty, and memory.

    Examples: [bold]favorit bench epoch --data cifar10 --preset vit-64 --set "data.augment=flip|rotate(5)"[/bold],
    [bold]favorit bench epoch --set train.precision=bf16 --devices 2[/bold]
    """
    from favorit import measure
    from favorit.bench.epoch import epoch_cost
    from favorit.cli.configuration import build_config
    from favorit.cli.machine import reserve_machine
    from favorit.process import keep_large_buffers

    keep_large_buffers()
    defaults = ["data.name=cifar10"] if data is None else []
    config = build_config(None, preset, [*defaults, *(settings or [])], data=data, epochs=None, seed=None)
    console = form.open_console()
    with reserve_machine(console) as monitor:
        cost = epoch_cost(config, data_dir, devices, repeats)
    if cost is None:  # not the first of several processes
        return
    machine = measure.fingerprint()
    if form.as_json:
        environment = {**machine, "processes": devices}
        echo(json.dumps({**asdict(cost), "environment": environment, "foreign_load": monitor.json}))
        return
    processes = f"{devices} processes on " if devices > 1 else ""
    heading = (
        f"{preset} on {config.data.name}: one epoch, median of {cost.repeats}, "
        f"{processes}{measure.describe_hardware(machine)}"
    )
    spread = f" ({cost.low:.2f} to {cost.high:.2f})" if cost.repeats > 1 else ""
    rows = [
        ("images", f"{cost.images:,}"),
        ("seconds", f"{cost.seconds:.2f}{spread}"),
        ("images per second", f"{cost.images / cost.seconds:,.0f}"),
        ("share of the input pipeline", f"{cost.pipeline_share:.1%}"),
        ("matrix-product limit, GFLOP/s", f"{cost.gemm_gflops:.0f}"),
        ("share of that limit", f"{cost.gemm_share:.2f}"),
        ("cross-core cache penalty", f"{cost.cache_penalty:.1f}x"),
        ("peak memory, MiB", f"{cost.peak_memory / 2**20:,.0f}"),
    ]
    form.write(["what", "measured"], rows, right=["measured"], heading=heading)
