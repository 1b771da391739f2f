"""`favorit bench speed`: how fast mixers and models are here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from favorit import published
    from favorit.bench.imagenet import Beside
    from favorit.bench.speed import Cost

TITLES = ("name", "what", "tokens", "ms", "quartiles", "ratio", "us/token", "MiB", "of limit")
# Seconds of an epoch of 10,000 images and milliseconds of 64 images, each with its ratio to all_standard, and the same
# as published.
BESIDE = (
    "layout",
    "performer",
    "s/epoch",
    "ratio",
    "published s",
    "its ratio",
    "ms/64",
    "ms ratio",
    "published ms",
    "its ms ratio",
)
# What a narrow screen has no room for, the least needed first.
OPTIONAL = ("us/token", "quartiles", "of limit", "MiB", "tokens")
BESIDE_OPTIONAL = ("published ms", "published s", "ms/64", "s/epoch")


def speed(
    mixers: Annotated[
        list[str] | None, typer.Option("--mixer", help="A mixer, such as 'relu(m=64)'. Repeatable.", metavar="SPEC")
    ] = None,
    presets: Annotated[
        list[str] | None, typer.Option("--preset", help="A model instead of mixers. Repeatable.", metavar="PRESET")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the models, as model.key=value. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    layouts: Annotated[
        str | None, typer.Option(help="all: each preset in all_standard and four layouts with relu and favor of m=128.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images of a batch.")] = 128,
    heads: Annotated[int, typer.Option(min=1, help="Heads, for mixers.")] = 4,
    tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens, for mixers; 65 without it. Repeatable.")
    ] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Head width, for mixers.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repetitions, in turn.")] = 11,
    explain: Annotated[bool, typer.Option("--explain", help="Say which path each mixer took, and why.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the table as CSV.", metavar="FILE.csv")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Time mixers (forward, forward+backward) or whole models (training step, inference), interleaved; softmax is the
    yardstick.

    Examples: [bold]favorit bench speed --tokens 197 --mixer softmax --mixer "relu(m=64)" --explain[/bold],
    [bold]favorit bench speed --batch 1 --head-dim 32 --mixer "relu(m=64)" --tokens 4096 --tokens 65536[/bold],
    [bold]favorit bench speed --preset vit-192-imagenet --layouts all --batch 8 --set "model.stem=patch(16)"[/bold]
    """
    from favorit import measure, published
    from favorit.bench.imagenet import PUBLISHED, beside_published
    from favorit.bench.models import all_layouts, model_costs
    from favorit.bench.speed import Size, mixer_costs, scalings, write_csv
    from favorit.cli.columns import write_columns
    from favorit.cli.console import check_places, open_console
    from favorit.cli.measuring import alone
    from favorit.cli.settings import parse_settings
    from favorit.errors import FavoritError
    from favorit.model.presets import current_name, preset
    from favorit.process import keep_large_buffers

    if layouts not in (None, "all"):
        raise FavoritError(f"--layouts {layouts} is not valid: all, or leave it out")
    if presets and (mixers or tokens):
        raise FavoritError(
            "--preset times whole models, --mixer and --tokens attention alone: give the one or the other"
        )
    if not presets and (settings or layouts):
        raise FavoritError("--set and --layouts are for whole models: name one with --preset")
    check_places(out=out)
    keep_large_buffers()
    console = open_console(stderr=as_json)
    beside: dict[str, tuple[published.Table, list[Beside]]] = {}
    if presets:
        changes = parse_settings(settings or [], ("model",))["model"]
        presets = [current_name(name) for name in presets]
        models = {name: preset(name).replace(**changes) for name in presets}
        measured = all_layouts(models) if layouts else models
        with alone(console) as watch:
            costs = model_costs(measured, batch, repeats=repeats)
        for name in (name for name in presets if layouts and not settings and name in PUBLISHED):
            table = published.read(PUBLISHED[name])
            own = {key: config for key, config in measured.items() if key.startswith(f"{name} ")}
            beside[name] = table, beside_published(table, own, [cost for cost in costs if cost.name in own], batch)
    else:
        sizes = [Size(batch, heads, count, head_dim) for count in sorted(set(tokens or [65]))]
        with alone(console) as watch:
            costs = mixer_costs(mixers or ["softmax", "relu(m=64)", "favor(m=64)"], sizes, repeats=repeats)
    machine = measure.fingerprint()
    here = f"{machine['threads']} threads, {machine['processor']}"
    heading = f"{here}; median of {repeats}, interleaved; ratio to the first"
    write_columns(TITLES, _rows(costs), right=TITLES[1:], optional=OPTIONAL, heading=heading, err=as_json)
    for found in scalings(costs):
        evenly = f"time per token within {found.time:.2f}x, memory per token at most {found.memory:.2f}x that of {found.first}"
        console.print(
            f"{found.name}, {found.what}, {found.first} to {found.last} tokens: {evenly}", markup=False, soft_wrap=True
        )
    for name, (table, rows) in beside.items():
        heading = (
            f"\n{name}: ours ({here}, batch {batch}) beside {table.source} ({table.hardware}); ratio to all_standard"
        )
        write_columns(
            BESIDE, _published_rows(rows), right=BESIDE[2:], optional=BESIDE_OPTIONAL, heading=heading, err=as_json
        )
        told = "; ".join(published.FLAGS[flag] for flag in table.flags)
        console.print(f"published: other hardware; {told}", markup=False, soft_wrap=True)
    if explain:
        for cost in costs:
            where = f"{cost.name}, {cost.what}, {cost.tokens} tokens"
            console.print(f"{where}: {cost.path}", markup=False, soft_wrap=True)
    if out is not None:
        write_csv(costs, out)
    if as_json:
        shown = {name: [asdict(row) for row in rows] for name, (_, rows) in beside.items()}
        measured_costs = [asdict(cost) for cost in costs]
        report = {
            "environment": machine,
            "costs": measured_costs,
            "beside_published": shown,
            "foreign_load": watch.json,
        }
        typer.echo(json.dumps(report))


def _rows(costs: list[Cost]) -> list[list[str]]:
    base = {(cost.what, cost.tokens): cost.median for cost in reversed(costs)}
    return [
        [
            cost.name,
            cost.what,
            str(cost.tokens),
            f"{cost.median:.2f}",
            f"{cost.low:.2f}..{cost.high:.2f}",
            f"{cost.median / base[cost.what, cost.tokens]:.2f}x",
            f"{cost.microseconds_per_token:.3g}",
            f"{cost.memory / 2**20:.1f}",
            "" if cost.gemm_share is None else f"{cost.gemm_share:.2f}",
        ]
        for cost in costs
    ]


def _published_rows(rows: list[Beside]) -> list[list[str]]:
    return [
        [
            row.layout,
            row.performer or "",
            f"{row.ours.epoch:.1f}",
            f"{row.ours_ratio.epoch:.2f}",
            f"{row.published.epoch:.1f}",
            f"{row.published_ratio.epoch:.2f}",
            f"{row.ours.batch:.1f} +- {row.ours.deviation:.1f}",
            f"{row.ours_ratio.batch:.2f}",
            f"{row.published.batch:.1f}",
            f"{row.published_ratio.batch:.2f}",
        ]
        for row in rows
    ]
