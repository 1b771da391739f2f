"""`favorit bench speed`: the speed of mixers and models on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.shared import Repeats, TableForm, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit import published
    from favorit.bench.imagenet import ModelTimes
    from favorit.bench.speed import Cost

TITLES = ("name", "what", "tokens", "ms", "quartiles", "ratio (95 % interval)", "us/token", "MiB", "of limit")
# Ours and published: seconds per epoch of 10,000 images and milliseconds per 64 images, with ratios to all_standard.
PUBLISHED_TITLES = (
    "layout",
    "performer",
    "s/epoch",
    "ratio",
    "published s",
    "published ratio",
    "ms per 64 images",
    "ms ratio",
    "published ms",
    "published ms ratio",
)
# Columns that a narrow terminal leaves out, the least important first.
OPTIONAL = ("us/token", "quartiles", "of limit", "MiB", "tokens")
PUBLISHED_OPTIONAL = ("published ms", "published s", "ms per 64 images", "s/epoch")


@with_fields
def speed(
    mixers: Annotated[
        list[str] | None,
        typer.Option(
            "--mixer", help="A mixer. Default: softmax, 'relu(m=64)' and 'favor(m=64)'. Repeatable.", metavar="SPEC"
        ),
    ] = None,
    presets: Annotated[
        list[str] | None,
        typer.Option("--preset", help="A preset model, instead of mixers. Repeatable.", metavar="PRESET"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the models, such as model.depth=2. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    layouts: Annotated[
        str | None,
        typer.Option(help="all: each preset in all_standard, and in four layouts with relu and favor at m=128."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 128,
    heads: Annotated[int, typer.Option(min=1, help="Heads of the mixers.")] = 4,
    tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens of the mixers. Default: 65. Repeatable.")
    ] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Head width of the mixers.")] = 16,
    repeats: Repeats = 11,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the implementation that each call uses, and why.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the table as CSV.", metavar="FILE.csv")] = None,
    *,
    form: TableForm,
) -> None:
    """Time mixers, or whole models with --preset.

    Mixers are timed in forward and forward+backward, models in a training step and inference. Calls are interleaved;
    ratios are relative to the first mixer or model.

    Examples: [bold]favorit bench speed --tokens 197 --mixer softmax --mixer "relu(m=64)" --explain[/bold],
    [bold]favorit bench speed --batch 1 --head-dim 32 --mixer "relu(m=64)" --tokens 4096 --tokens 65536[/bold],
    [bold]favorit bench speed --preset vit-192-imagenet --layouts all --batch 8 --set "model.stem=patch(16)"[/bold]
    """
    from favorit import measure, published
    from favorit.attention import MIXERS
    from favorit.bench.imagenet import PUBLISHED, compare_with_published
    from favorit.bench.model_speed import all_layouts, model_costs
    from favorit.bench.speed import Size, cost_rows, mixer_costs, ratios_to_first, scalings
    from favorit.bench.spread import describe_undecided
    from favorit.cli.console import check_outputs
    from favorit.cli.machine import reserve_machine
    from favorit.errors import FavoritError
    from favorit.export import write_csv
    from favorit.fields import parse_settings
    from favorit.model.presets import current_name, preset
    from favorit.process import keep_large_buffers

    if layouts not in (None, "all"):
        raise FavoritError(f"--layouts {layouts} is not valid: the only value is all")
    if presets and (mixers or tokens):
        raise FavoritError("--preset times whole models, --mixer and --tokens time attention alone: give only one kind")
    if not presets and (settings or layouts):
        raise FavoritError("--set and --layouts apply to whole models: give one with --preset")
    check_outputs(out=out)
    for mixer in mixers or ():  # before the machine is reserved, which may take long
        MIXERS.canonical(mixer)
    keep_large_buffers()
    console = form.open_console()
    comparisons: dict[str, tuple[published.Table, list[ModelTimes]]] = {}
    if presets:
        changes = parse_settings(settings or [], ("model",))["model"]
        presets = [current_name(name) for name in presets]
        models = {name: preset(name).replace(**changes) for name in presets}
        measured = all_layouts(models) if layouts else models
        with reserve_machine(console) as monitor:
            costs = model_costs(measured, batch, repeats=repeats)
        for name in (name for name in presets if layouts and not settings and name in PUBLISHED):
            table = published.read(PUBLISHED[name])
            own = {key: config for key, config in measured.items() if key.startswith(f"{name} ")}
            own_costs = [cost for cost in costs if cost.name in own]
            comparisons[name] = table, compare_with_published(table, own, own_costs, batch)
    else:
        sizes = [Size(batch, heads, count, head_dim) for count in sorted(set(tokens or [65]))]
        with reserve_machine(console) as monitor:
            costs = mixer_costs(mixers or ["softmax", "relu(m=64)", "favor(m=64)"], sizes, repeats=repeats)
    machine = measure.fingerprint()
    hardware = measure.describe_hardware(machine)
    heading = (
        f"{hardware}; median of {len(costs[0].rounds)} rounds, interleaved; "
        "ratio: time / time of the first row, above 1 is slower"
    )
    form.write(TITLES, _rows(costs), right=TITLES[1:], optional=OPTIONAL, heading=heading)
    ratios = [ratio for ratio in ratios_to_first(costs) if ratio is not None]
    notes = ["of limit: achieved share of this machine's matrix-product limit", *describe_undecided(ratios, repeats)]
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)
    for scaling in scalings(costs):
        line = (
            f"{scaling.name}, {scaling.what}, {scaling.first} to {scaling.last} tokens: time per token varies by "
            f"{scaling.time.text}, memory per token is at most {scaling.memory:.2f}x that at {scaling.first}"
        )
        console.print(line, markup=False, soft_wrap=True)
    for name, (table, rows) in comparisons.items():
        heading = (
            f"\n{name}: ours ({hardware}, batch {batch}) and published in {table.source} ({table.hardware}); "
            "ratio to all_standard"
        )
        form.write(
            PUBLISHED_TITLES,
            _published_rows(rows),
            right=PUBLISHED_TITLES[2:],
            optional=PUBLISHED_OPTIONAL,
            heading=heading,
            is_main=False,
        )
        flags = "; ".join(published.FLAGS[flag] for flag in table.flags)
        console.print(f"published: other hardware; {flags}", markup=False, soft_wrap=True)
    if explain:
        for cost in costs:
            line = f"{cost.name}, {cost.what}, {cost.tokens} tokens: {cost.path}"
            console.print(line, markup=False, soft_wrap=True)
    if out is not None:
        write_csv(cost_rows(costs), out)
    if form.as_json:
        report = {
            "environment": machine,
            "costs": [{**row, "rounds": cost.rounds} for row, cost in zip(cost_rows(costs), costs, strict=True)],
            "published": {name: [asdict(row) for row in rows] for name, (_, rows) in comparisons.items()},
            "foreign_load": monitor.json,
        }
        echo(json.dumps(report))


def _rows(costs: list[Cost]) -> list[list[str]]:
    from favorit.bench.speed import ratios_to_first

    return [
        [
            cost.name,
            cost.what,
            str(cost.tokens),
            f"{cost.median:.2f}",
            f"{cost.low:.2f} to {cost.high:.2f}",
            "1" if ratio is None else ratio.verdict,
            f"{cost.microseconds_per_token:.3g}",
            f"{cost.memory / 2**20:.1f}",
            "" if cost.gemm_share is None else f"{cost.gemm_share:.2f}",
        ]
        for cost, ratio in zip(costs, ratios_to_first(costs), strict=True)
    ]


def _published_rows(rows: list[ModelTimes]) -> list[list[str]]:
    return [
        [
            row.layout,
            row.performer or "",
            f"{row.ours.epoch:.1f}",
            row.ours_epoch_ratio.verdict,
            f"{row.published.epoch:.1f}",
            f"{row.published_ratio.epoch:.2f}",
            f"{row.ours.batch:.1f} +- {row.ours.deviation:.1f}",
            row.ours_batch_ratio.verdict,
            f"{row.published.batch:.1f}",
            f"{row.published_ratio.batch:.2f}",
        ]
        for row in rows
    ]
