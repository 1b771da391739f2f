"""`favorit evaluate`: evaluate a complete run on its test set again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from favorit.cli.shared import TableForm, with_fields


@with_fields
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder, such as runs/0123456789abcdef.", metavar="RUN")],
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The folder for data sets; default: FAVORIT_DATA, else the user's cache."),
    ] = None,
    *,
    form: TableForm,
) -> None:
    """Evaluate a complete run on its test set again.

    Prints accuracy, top 5, loss, calibration, each class, time, memory and size.

    Example: [bold]favorit evaluate runs/0123456789abcdef[/bold]
    """
    from favorit.cli.tables import CLASS_NUMBERS, class_rows
    from favorit.training.inference import evaluate_run

    found = evaluate_run(run, data_dir)
    if form.as_json:
        typer.echo(json.dumps({"run": str(run), **found}))
        return
    for line in _lines(found):
        form.say(line)
    titles, rows = class_rows(found["test"], found["classes"])
    form.write(titles, rows, right=CLASS_NUMBERS)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    test = found["test"]
    mean, deviation = found["inference_seconds_per_batch"]
    spread = "" if deviation is None else f" +- {1e3 * deviation:.1f}"
    memory = "" if found["peak_memory"] is None else f"   peak memory {found['peak_memory'] / 2**20:,.0f} MiB"
    yield (
        f"accuracy {test['accuracy']:.2%}   top 5 {test['top5']:.2%}   loss {test['loss']:.4f}   "
        f"calibration error {test['calibration_error']:.4f}"
    )
    yield (
        f"inference {found['inference_seconds']:.2f} s, "
        f"{1e3 * mean:.1f}{spread} ms for a batch of {found['inference_batch']}, "
        f"{found['images_per_second']:,.0f} images/s{memory}"
    )
    yield f"{found['parameters']:,} parameters   {found['flops'] / 1e6:,.1f} MFLOPs for an image"
    if found["flags"]:
        yield f"flags: {', '.join(found['flags'])}"
