"""`favorit bench busy`: the slowdown of a training step next to one busy process."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from favorit.cli.shared import Repeats, TableForm, with_fields
from favorit.terminal import echo


@with_fields
def busy(
    preset: Annotated[
        str | None, typer.Option(help="A model. Default: vit-64 with relu(m=64) in all layers.", metavar="PRESET")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the model, such as model.depth=2. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="Training steps per round.")] = 8,
    repeats: Repeats = 6,
    *,
    form: TableForm,
) -> None:
    """Time a training step on a quiet machine and next to one busy process.

    Three settings are compared: one thread, favorit's setting, and default spinning of OpenMP threads. They run in
    separate processes, which are timed interleaved.

    Example: [bold]favorit bench busy --preset vit-64 --batch 64[/bold]
    """
    from favorit import measure
    from favorit.bench.busy import BUSY_TARGET, QUIET_TARGET, are_met, slowdowns, verdict
    from favorit.cli.machine import reserve_machine
    from favorit.fields import parse_settings
    from favorit.model import preset as preset_config
    from favorit.model.outline import check_memory

    defaults = {"layout": "all_performer", "performer": "relu(m=64)"} if preset is None else {}
    changes = parse_settings(settings or [], ("model",))["model"]
    model = preset_config(preset or "vit-64").replace(**{**defaults, **changes})
    check_memory(model)
    console = form.open_console()
    with reserve_machine(console) as monitor:
        found = slowdowns(model, batch, steps=steps, repeats=repeats)
    machine = measure.fingerprint()
    titles = ("setting", "quiet ms", "busy ms", "quiet / default", "busy / one thread")
    rows = [
        [
            each.name,
            f"{each.quiet.median:.1f}",
            f"{each.busy.median:.1f}",
            each.to_default.text,
            each.to_one_thread.text,
        ]
        for each in found
    ]
    heading = (
        f"training step, batch {batch}, {measure.describe_hardware(machine)}; "
        f"median of {len(found[0].quiet.values)} rounds of {steps} steps; ratios with 95 % interval"
    )
    form.write(titles, rows, right=titles[1:], heading=heading)
    disturbed = monitor.load is not None and monitor.load.note is not None
    console.print(
        verdict(found) + ("; unreliable: other processes were running" if disturbed else ""),
        markup=False,
        soft_wrap=True,
    )
    if form.as_json:
        targets = {"quiet": QUIET_TARGET, "busy": BUSY_TARGET}
        report = {
            "environment": machine,
            "settings": [
                {
                    **asdict(each),
                    **each.to_default.fields("to_default"),
                    **each.to_one_thread.fields("to_one_thread"),
                }
                for each in found
            ],
            "met": are_met(found),
            "targets": targets,
            "foreign_load": monitor.json,
        }
        echo(json.dumps(report))
