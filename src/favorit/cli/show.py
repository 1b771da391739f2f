"""`favorit show`: a model as a table of layers."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from favorit.cli.shared import TableForm, with_fields
from favorit.terminal import echo


@with_fields
def show(
    preset: Annotated[str, typer.Argument(help="A preset ('favorit list presets').", metavar="PRESET")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field to change, as model.key=value. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    *,
    form: TableForm,
) -> None:
    """Show a model as a table of its modules: output shape, parameters, trainable parameters, FLOPs for one image.

    Examples: [bold]favorit show vit-64[/bold],
    [bold]favorit show vit-64 --set model.layout=performer_first --set "model.performer=relu(m=64)"[/bold]
    """
    from favorit.fields import parse_settings
    from favorit.model import create_model
    from favorit.model.layout import layers, write_out
    from favorit.model.outline import check_memory
    from favorit.model.presets import current_name
    from favorit.model.presets import preset as find_preset
    from favorit.model.summary import summarize

    preset = current_name(preset)
    config = find_preset(preset).replace(**parse_settings(settings or [], ("model",))["model"])
    check_memory(config)
    model = create_model(config, seed=0)
    rows = summarize(model)
    total = {name: sum(getattr(row, name) for row in rows) for name in ("parameters", "trainable", "flops")}
    if form.as_json:
        echo(
            json.dumps(
                {
                    "preset": preset,
                    "config": model.config.model_dump(mode="json"),
                    "layers": [dataclasses.asdict(row) for row in rows],
                    **total,
                }
            )
        )
        return
    size = " x ".join(map(str, (model.config.channels, *model.config.image_size)))
    table = [
        [
            part.layer,
            part.kind,
            " x ".join(map(str, part.shape)),
            f"{part.parameters:,}",
            f"{part.trainable:,}",
            f"{part.flops / 1e6:,.2f}",
        ]
        for row in rows
        for part in row.parts or (row,)
    ]
    table.append(
        ["total", "", "", f"{total['parameters']:,}", f"{total['trainable']:,}", f"{total['flops'] / 1e6:,.2f}"]
    )
    titles = ["layer", "kind", "output", "parameters", "trainable", "MFLOPs"]
    form.write(titles, table, right=titles[2:], heading=f"{preset}, {size}")
    mixers = layers(config.layout, config.performer, config.depth)
    form.say(f"\nlayers 1 to {config.depth}: {write_out(mixers)}")
