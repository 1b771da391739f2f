"""`favorit train`: one run, or all folds of a cross-validation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from favorit.cli.shared import TableForm, with_fields


@with_fields
def train(
    data: Annotated[str | None, typer.Option(help="A data set ('favorit data list'), or folder:PATH.")] = None,
    preset: Annotated[str | None, typer.Option(help="A model ('favorit list presets').")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with any of the sections model, data, train, and optionally a seed; or a run folder, "
            "a packed run, or its config.json."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any field, as section.key=value. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Short for --set train.epochs=N.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of initialization, order, augmentation, dropout and random features."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Stratified k-fold cross-validation: train all folds, print mean held-out and test accuracy.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for runs.")] = Path("runs"),
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The folder for data sets; default: FAVORIT_DATA, else the user's cache."),
    ] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    devices: Annotated[int, typer.Option(help="Number of processes that share each batch (DDP).")] = 1,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the model with torch.compile.")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves for TensorBoard into OUT/tensorboard.")
    ] = False,
    *,
    form: TableForm,
) -> None:
    """Train a model. Rerun the same command to resume; finished runs are skipped. --json prints a line for each run,
    and one for all folds.

    Examples: [bold]favorit train --epochs 5[/bold],
    [bold]favorit train --data cifar10 --preset vit-64 --set model.layout=performer_first --set
    "model.performer=relu(m=128)"[/bold]
    """
    from favorit.cli.configuration import build_config
    from favorit.cli.progress import training_progress
    from favorit.cli.tables import OPTIONAL, result_rows, summary
    from favorit.errors import FavoritError
    from favorit.process import keep_large_buffers
    from favorit.training import train as train_run

    keep_large_buffers()
    # With several devices, each process runs this command, but only rank 0 prints.
    is_rank_zero = os.environ.get("LOCAL_RANK", "0") == "0"
    console = form.open_console()
    console.quiet = not is_rank_zero
    values = build_config(config, preset, settings or [], data=data, epochs=epochs, seed=seed)
    if folds and (values.data.folds, values.data.fold) != (None, None):
        raise FavoritError("--folds trains every fold, but data.folds and data.fold select one: give only one of them")
    finished = []
    for fold in range(folds) if folds else [None]:
        own = values if fold is None else values.replace(data=values.data.replace(folds=folds, fold=fold))
        if fold is not None:
            console.print(f"fold {fold + 1} of {folds}")
        with training_progress(console, out / "tensorboard" if tensorboard and is_rank_zero else None) as listen:
            finished.append(
                train_run(
                    own,
                    out=out,
                    data_dir=data_dir,
                    accelerator=accelerator,
                    devices=devices,
                    compiled=compiled,
                    listen=listen,
                )
            )
    results: dict[str, dict[str, Any]] = {run.id: run.result for run in finished}
    if is_rank_zero:
        titles, rows = result_rows(results)
        form.write(titles, rows, right=titles[1:], optional=OPTIONAL)
    for run in finished:
        console.print(f"run {run.id} in {run.path}", soft_wrap=True, markup=False)
        if form.as_json and is_rank_zero:
            typer.echo(json.dumps({"id": run.id, "path": str(run.path), **run.result}))
    if form.as_json and is_rank_zero and folds:
        typer.echo(json.dumps({"folds": folds, **summary(results)}))
