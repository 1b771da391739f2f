"""`favorit bench busy`: what one busy process costs a training step."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def busy(
    preset: Annotated[
        str | None, typer.Option(help="A model; vit-64 with relu(m=64) in all layers without it.", metavar="PRESET")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the model, as model.key=value. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images of a batch.")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of a turn.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each setting.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Time a training step on the quiet machine and next to one busy process: one thread, favorit's setting, and
    default spinning.

    Each setting has its own process; they take turns. Example: [bold]favorit bench busy --preset vit-64 --batch
    64[/bold]
    """
    from favorit import measure
    from favorit.bench.busy import BUSY_TARGET, QUIET_TARGET, slowdowns, verdict
    from favorit.cli.columns import write_columns
    from favorit.cli.console import open_console
    from favorit.cli.measuring import alone
    from favorit.cli.settings import parse_settings
    from favorit.model import preset as find
    from favorit.model.outline import check_memory

    usual = {"layout": "all_performer", "performer": "relu(m=64)"} if preset is None else {}
    model = find(preset or "vit-64").replace(**{**usual, **parse_settings(settings or [], ("model",))["model"]})
    check_memory(model)
    console = open_console(stderr=as_json)
    with alone(console) as watch:
        found = slowdowns(model, batch, steps=steps, repeats=repeats)
    machine = measure.fingerprint()
    titles = ("setting", "quiet ms", "busy ms", "quiet / default", "busy / one thread")
    rows = [
        [
            each.name,
            f"{each.quiet.median:.1f}",
            f"{each.busy.median:.1f}",
            f"{each.to_default:.2f}x",
            f"{each.to_one_thread:.2f}x",
        ]
        for each in found
    ]
    heading = f"a training step, batch {batch}, {machine['threads']} threads, {machine['processor']}; median of {repeats} turns of {steps}"
    write_columns(titles, rows, right=titles[1:], heading=heading, err=as_json)
    disturbed = watch.load is not None and watch.load.note is not None
    console.print(
        verdict(found) + ("; unreliable, as other processes ran" if disturbed else ""), markup=False, soft_wrap=True
    )
    if as_json:
        targets = {"quiet": QUIET_TARGET, "busy": BUSY_TARGET}
        report = {
            "environment": machine,
            "settings": [asdict(each) for each in found],
            "targets": targets,
            "foreign_load": watch.json,
        }
        typer.echo(json.dumps(report))
