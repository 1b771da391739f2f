"""`favorit train`: one run, or all folds of a cross-validation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from favorit.cli.shared import PROGRESS, DataDir, SkipUnreadable, TableForm, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

    from favorit.config import RunConfig
    from favorit.training import Event


@with_fields
def train(
    data: Annotated[str | None, typer.Option(help="A data set ('favorit data list'), or folder:PATH.")] = None,
    preset: Annotated[str | None, typer.Option(help="A model ('favorit list presets').")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with any of the sections model, data, train, and optionally a seed; or a run: its "
            "folder, packed file or config.json, or the start of its ID or name."
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
    skip_unreadable: SkipUnreadable = False,
    data_dir: DataDir = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Number of processes that share each batch (DDP).")] = 1,
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
    from favorit.cli.console import check_folders
    from favorit.cli.tables import OPTIONAL, result_rows, summary
    from favorit.errors import FavoritError
    from favorit.process import keep_large_buffers
    from favorit.training import train as train_run
    from favorit.training.progress import is_first_process

    check_folders(out=out)
    keep_large_buffers()
    # With several devices, each process runs this command, but only the first one prints.
    is_first = is_first_process()
    console = form.open_console()
    console.quiet = not is_first
    values = build_config(
        config, preset, settings or [], data=data, epochs=epochs, seed=seed, skip_unreadable=skip_unreadable
    )
    if folds and (values.data.folds, values.data.fold) != (None, None):
        raise FavoritError("--folds trains every fold, but data.folds and data.fold select one: give only one of them")
    if folds and any(setting.partition("=")[0].strip() == "data.validation" for setting in settings or []):
        raise FavoritError(f"--folds {folds} and --set data.validation both choose the validation images: give one")
    finished = []
    for fold in range(folds) if folds else [None]:
        own = values if fold is None else values.replace(data=values.data.replace(folds=folds, fold=fold))
        if fold is not None:
            console.print(f"fold {fold + 1} of {folds}")
        with _listening(console, out / "tensorboard" if tensorboard and is_first else None) as listen:
            finished.append(
                train_run(
                    own,
                    out=out,
                    data_dir=data_dir,
                    accelerator=accelerator,
                    devices=devices,
                    compiled=compiled,
                    listen=listen,
                    progress=False,
                )
            )
    results: dict[str, dict[str, Any]] = {run.id: run.result for run in finished}
    if is_first:
        titles, rows = result_rows(results)
        form.write(titles, rows, right=titles[1:], optional=OPTIONAL)
    for run in finished:
        console.print(f"run {run.id} in {run.path}", soft_wrap=True, markup=False)
        if form.as_json and is_first:
            echo(json.dumps({"id": run.id, "path": str(run.path), **run.result}))
    if form.as_json and is_first and folds:
        echo(json.dumps({"folds": folds, **summary(results)}))


@contextmanager
def _listening(console: Console, tensorboard: Path | None) -> Iterator[Callable[[Event, RunConfig], None]]:
    """Yields a function of events that prints the progress and writes TensorBoard curves into a folder, if given."""
    from favorit.cli.tensorboard import Curves
    from favorit.training import Begin, Checkpoint, Epoch
    from favorit.training.progress import training_progress

    has_events = False
    curves = None if tensorboard is None else Curves(tensorboard)
    with nullcontext() if curves is None else closing(curves), training_progress(console) as show:

        def listen(event: Event, config: RunConfig) -> None:
            nonlocal has_events
            has_events = True
            if isinstance(event, Checkpoint | Epoch) or (isinstance(event, Begin) and event.step):
                PROGRESS.is_resumable = True
            if curves is not None:
                curves.on_event(event)
            show(event, config)

        yield listen
    if not has_events:
        PROGRESS.is_resumable = True
