"""`favorit bench`: what this machine does."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Benchmarks on this machine.", no_args_is_help=True, rich_markup_mode="rich")


@app.command("epoch")
def epoch(
    data: Annotated[str, typer.Option(help="A data set ('favorit data list').")] = "cifar10",
    preset: Annotated[str, typer.Option(help="A model ('favorit list presets').")] = "hybrid",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any field, as section.key=value. Repeatable.", metavar="FIELD=VALUE")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Time one whole training epoch: seconds, the input pipeline's share, the share of this machine's matrix-product limit, memory.

    Example: [bold]favorit bench epoch --data cifar10 --preset hybrid --set "data.augment=flip|rotate(5)"[/bold]
    """
    from favorit import measure
    from favorit.bench.epoch import epoch_cost
    from favorit.cli.allocator import keep_large_buffers
    from favorit.cli.compose import compose
    from favorit.cli.console import open_console, open_table

    keep_large_buffers()
    cost = epoch_cost(compose(None, preset, settings or [], data=data, epochs=None, seed=None), data_dir)
    machine = measure.fingerprint()
    if as_json:
        typer.echo(json.dumps({**asdict(cost), "environment": machine}))
        return
    table = open_table(
        f"{preset} on {data}: one epoch, {machine['threads']} threads, {machine['processor']}", what="left", measured="right"
    )
    table.add_row("images", f"{cost.images:,}")
    table.add_row("seconds", f"{cost.seconds:.1f}")
    table.add_row("images per second", f"{cost.images / cost.seconds:,.0f}")
    table.add_row("input pipeline", f"{cost.pipeline_share:.1%}")
    table.add_row("matrix-product limit, GFLOP/s", f"{cost.gemm_gflops:.0f}")
    table.add_row("share of that limit", f"{cost.gemm_share:.2f}")
    table.add_row("peak memory, MiB", f"{cost.peak_memory / 2**20:,.0f}")
    open_console().print(table, markup=False)


@app.command("speed")
def speed(
    mixers: Annotated[list[str] | None, typer.Option("--mixer", help="A mixer, such as 'relu(m=64)'. Repeatable.", metavar="SPEC")] = None,
    presets: Annotated[list[str] | None, typer.Option("--preset", help="A model instead of mixers. Repeatable.", metavar="PRESET")] = None,
    layouts: Annotated[
        str | None, typer.Option(help="all: each preset in all_standard and four layouts with relu and favor of m=128.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images of a batch.")] = 128,
    heads: Annotated[int, typer.Option(min=1, help="Heads, for mixers.")] = 4,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens, for mixers.")] = 65,
    head_dim: Annotated[int, typer.Option(min=1, help="Head width, for mixers.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repetitions, in turn.")] = 11,
    explain: Annotated[bool, typer.Option("--explain", help="Say which path each mixer took, and why.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the table as CSV.", metavar="FILE.csv")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Time mixers (forward, forward+backward) or whole models (training step, inference), interleaved; softmax is the yardstick.

    Examples: [bold]favorit bench speed --tokens 197 --mixer softmax --mixer "relu(m=64)" --explain[/bold],
    [bold]favorit bench speed --preset hybrid-imagenet --layouts all --batch 8[/bold]
    """
    from favorit import measure
    from favorit.bench.speed import Size, all_layouts, mixer_costs, model_costs, write_csv
    from favorit.cli.allocator import keep_large_buffers
    from favorit.cli.console import open_console, open_table
    from favorit.errors import FavoritError
    from favorit.model import preset

    if layouts not in (None, "all"):
        raise FavoritError(f"--layouts {layouts} is not valid: all, or leave it out")
    keep_large_buffers()
    if presets:
        models = {name: preset(name) for name in presets}
        costs = model_costs(all_layouts(models) if layouts else models, batch, repeats=repeats)
    else:
        costs = mixer_costs(mixers or ["softmax", "relu(m=64)", "favor(m=64)"], Size(batch, heads, tokens, head_dim), repeats=repeats)
    machine = measure.fingerprint()
    table = open_table(
        f"{machine['threads']} threads, {machine['processor']}; median of {repeats}, interleaved",
        name="left", what="left", ms="right", quartiles="right", against_first="right", MiB="right", of_limit="right",
    )  # fmt: skip
    base = {cost.what: cost.median for cost in reversed(costs)}
    for cost in costs:
        share = "" if cost.gemm_share is None else f"{cost.gemm_share:.2f}"
        quartiles, ratio = f"{cost.low:.2f}..{cost.high:.2f}", f"{cost.median / base[cost.what]:.2f}x"
        table.add_row(cost.name, cost.what, f"{cost.median:.2f}", quartiles, ratio, f"{cost.memory / 2**20:.1f}", share)
    console = open_console(stderr=as_json)
    console.print(table, markup=False)
    if explain:
        for cost in costs:
            console.print(f"{cost.name}, {cost.what}: {cost.path or 'as its layers'}", markup=False, soft_wrap=True)
    if out is not None:
        write_csv(costs, out)
    if as_json:
        typer.echo(json.dumps({"environment": machine, "costs": [asdict(cost) for cost in costs]}))
