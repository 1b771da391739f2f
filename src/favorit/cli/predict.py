"""`favorit predict`: the classes of image files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from favorit.cli.shared import RUN, RunsFolder, TableForm, with_fields
from favorit.terminal import echo


@with_fields
def predict(
    run: Annotated[Path, typer.Argument(help=RUN, metavar="RUN")],
    images: Annotated[
        list[Path], typer.Argument(help="Image files, or folders with images in or below them.", metavar="IMAGE...")
    ],
    top: Annotated[int, typer.Option(help="Number of classes to print for each image.", min=1)] = 1,
    runs: RunsFolder = Path("runs"),
    *,
    form: TableForm,
) -> None:
    """Predict the class of images, with its probability. Unreadable files are listed at the end. --json prints a line
    for each image.

    Exit status 1 if some files could not be read, 2 if none could.

    Examples: [bold]favorit predict 0123 cat.png[/bold],
    [bold]favorit predict runs/0123456789abcdef photos/ --top 3 --json[/bold]
    """
    from favorit.training.find import open_run
    from favorit.training.inference import predict_files

    found = predict_files(open_run(run, runs).path, images, top)
    unreadable = [prediction.error for prediction in found if prediction.error is not None]
    if form.as_json:
        for prediction in found:
            classes = [{"class": name, "probability": p} for name, p in prediction.classes]
            echo(json.dumps({"image": str(prediction.file), "classes": classes, "error": prediction.error}))
    elif len(unreadable) < len(found):
        rows = [
            (str(prediction.file) if rank == 0 or not form.is_text else "", name, f"{probability:.2%}")
            for prediction in found
            for rank, (name, probability) in enumerate(prediction.classes)
        ]
        form.write(["image", "class", "probability"], rows, right=["probability"])
    for error in unreadable:
        echo(f"favorit: {error}", err=True)
    if unreadable:
        raise typer.Exit(1 if len(unreadable) < len(found) else 2)
