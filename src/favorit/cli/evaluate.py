"""`favorit evaluate`: evaluate a complete run on its test set again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from favorit.cli.shared import RUN, DataDir, RunsFolder, TableForm, with_fields
from favorit.terminal import echo


@with_fields
def evaluate(
    run: Annotated[Path, typer.Argument(help=RUN, metavar="RUN")],
    data_dir: DataDir = None,
    skip_unreadable: Annotated[
        bool,
        typer.Option("--skip-unreadable", help="Leave out test images that are missing, unreadable or changed."),
    ] = False,
    runs: RunsFolder = Path("runs"),
    *,
    form: TableForm,
) -> None:
    """Evaluate a complete run on its test set again.

    Prints accuracy, top 5 (with more than five classes), loss, calibration, each class, time, memory and size.

    Examples: [bold]favorit evaluate 0123[/bold], [bold]favorit evaluate runs/0123456789abcdef[/bold],
    [bold]favorit evaluate "layout=softmax seed=0" --runs elsewhere[/bold]
    """
    from favorit.cli.tables import CLASS_NUMBERS, class_rows
    from favorit.training.find import open_run
    from favorit.training.inference import evaluate as evaluate_run

    run = open_run(run, runs).path
    found = evaluate_run(run, data_dir, skip_unreadable=skip_unreadable)
    if form.as_json:
        echo(json.dumps({"run": str(run), **found}))
        return
    for line in _lines(found):
        form.say(line)
    titles, rows = class_rows(found["test"], found["classes"])
    form.write(titles, rows, right=CLASS_NUMBERS)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    from favorit.cli.tables import has_top5
    from favorit.data.image_files import named

    test = found["test"]
    if skipped := found.get("skipped"):
        tested = sum(map(sum, test["confusion"]))
        yield f"left out, because missing, unreadable or changed: {named(skipped)}"
        yield f"tested on the other {tested} images: this is not the accuracy of the run, which is in its result.json"
    mean, deviation = found["inference_seconds_per_batch"]
    spread = "" if deviation is None else f" +- {1e3 * deviation:.1f}"
    memory = "" if found["peak_memory"] is None else f"   peak memory {found['peak_memory'] / 2**20:,.0f} MiB"
    top5 = f"   top 5 {test['top5']:.2%}" if has_top5(test) else ""
    yield (
        f"accuracy {test['accuracy']:.2%}{top5}   loss {test['loss']:.4f}   "
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
