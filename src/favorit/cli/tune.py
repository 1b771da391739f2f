"""`favorit tune`: the best configuration of a search space."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from favorit.config import RunConfig
    from favorit.tuning.events import TuneEvent
    from favorit.tuning.result import TrialRecord, TuneResult

SHOWN = 10
SPACES = (
    "quickstart, kernels-vit, kernels-relu, kernels-elu-first, kernels-elu, kernels-gelu-first, kernels-gelu, kernels-exp-grid, "
    "kernels-exp, kernels-ftheta"
)


def tune(
    space: Annotated[
        str, typer.Argument(help=f"A built-in search space ({SPACES}), or a YAML file of fields.", metavar="SPACE")
    ],
    data: Annotated[str | None, typer.Option(help="A data set ('favorit data list'), or folder:PATH.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="A model ('favorit list presets') in place of the space's own.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file as of 'favorit train', in place of the space's own base.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any field of the base, as section.key=value. Repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Short for --set train.epochs=N.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides what is drawn, and each run's own randomness.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials in all; else the whole grid, or 20.")] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe, grid or random; else what the space says.")] = None,
    pruner: Annotated[str | None, typer.Option(help="median, hyperband or none.")] = None,
    objective: Annotated[str, typer.Option(help="accuracy, or accuracy,latency for a Pareto front.")] = "accuracy",
    storage: Annotated[
        str | None,
        typer.Option(
            help="sqlite:///FILE, journal:FILE or postgresql://user@host/database; else OUT/tune.db.", metavar="URL"
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the study.")] = 1,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="The study's name; else that of the space.", metavar="STUDY")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")
    ] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Search a space for the best configuration; the same command goes on where it was interrupted, also beside others.

    Examples: [bold]favorit tune quickstart --trials 12[/bold],
    [bold]favorit tune kernels-relu --trials 50 --pruner hyperband --workers 2[/bold],
    [bold]favorit tune my.yaml --config base.yaml --objective accuracy,latency --storage
    postgresql://me@host/tuning[/bold]
    """
    from favorit.cli.compose import compose
    from favorit.cli.console import open_console
    from favorit.process import keep_large_buffers
    from favorit.tuning import read_space
    from favorit.tuning import tune as search
    from favorit.tuning.figures import draw
    from favorit.tuning.result import write_best, write_front

    keep_large_buffers()
    console = open_console(stderr=as_json)
    found = read_space(space)
    given = compose(config, preset, settings or [], data=data, epochs=epochs, seed=seed)
    base = given if config is not None else _over(found.base, given, whole=("model",) if preset is not None else ())
    with _progress(console) as listen:
        result = search(
            found,
            base,
            out=out,
            name=name,
            trials=trials,
            sampler=sampler,
            pruner=pruner,
            objectives=tuple(part.strip() for part in objective.split(",")),
            storage=storage,
            workers=workers,
            data_dir=data_dir,
            accelerator=accelerator,
            listen=listen,
        )
    files = [out / f"{result.name}-best.yaml", out / f"{result.name}-tuning.png"]
    write_best(result, files[0])
    draw(result, files[1])
    if len(result.objectives) > 1:
        files.append(out / f"{result.name}-front.csv")
        write_front(result, files[2])
    _show(console, result, files)
    if as_json:
        best = (
            None
            if result.best is None
            else {"trial": result.front[0].number, "run": result.front[0].run, **result.best.changed()}
        )
        typer.echo(
            json.dumps(
                {
                    "study": result.name,
                    "best": best,
                    "importances": result.importances,
                    "trials": [asdict(t) for t in result.trials],
                }
            )
        )
    if result.best is None:
        from favorit.errors import FavoritError

        raise FavoritError(f"no trial of the study {result.name!r} is complete: the table above says why")


def _over(base: RunConfig, given: RunConfig, whole: tuple[str, ...]) -> RunConfig:
    """The base with what the command line gave; sections in `whole` are taken over as they are."""
    from favorit.config import SECTIONS

    changes: dict[str, Any] = {}
    for name in given.model_fields_set:
        part = getattr(given, name)
        if name in whole or name not in SECTIONS:
            changes[name] = part
        else:
            changes[name] = getattr(base, name).replace(
                **{field: getattr(part, field) for field in part.model_fields_set}
            )
    return base.replace(**changes)


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[TuneEvent], None]]:
    """A function for `favorit.tune(listen=...)`: bars on a terminal, a line for each trial everywhere."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from favorit.tuning.events import Began, Over, Planned, Trained

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    bars: dict[int, TaskID] = {}  # by trial; -1 is all of them
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def hear(event: TuneEvent) -> None:
            if isinstance(event, Planned):
                bars[-1] = progress.add_task("trials", total=event.trials, completed=event.over)
            elif isinstance(event, Began):
                shown = ", ".join(f"{key} {_value(value)}" for key, value in event.values.items())
                progress.console.print(
                    f"trial {event.number} {'goes on' if event.again else 'begins'}: {shown}",
                    markup=False,
                    soft_wrap=True,
                )
                bars[event.number] = progress.add_task(f"trial {event.number}", total=1.0)
            elif isinstance(event, Trained):
                told = (
                    {}
                    if event.accuracy is None
                    else {"description": f"trial {event.number}  validation {event.accuracy:.2%}"}
                )
                progress.update(bars[event.number], completed=event.share, **told)  # type: ignore[arg-type]
            else:
                assert isinstance(event, Over)
                progress.remove_task(bars.pop(event.number))
                progress.advance(bars[-1])
                progress.console.print(_sentence(event), markup=False, soft_wrap=True)

        yield hear


def _sentence(event: Any) -> str:
    if event.error is not None:
        return f"trial {event.number} failed: {event.error}"
    latency = f", {event.values[1]:.2f} ms" if event.values and len(event.values) > 1 else ""
    return (
        f"trial {event.number} is {event.state}: {event.values[0]:.2%}{latency}"
        if event.values
        else f"trial {event.number} is {event.state}"
    )


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show(console: Console, result: TuneResult, files: list[Path]) -> None:
    ranked, states = result.ranked(), [trial.state for trial in result.trials]
    console.print(_table(result, ranked[:SHOWN], f"{result.name}: best trials by validation accuracy"), markup=False)
    if len(result.objectives) > 1:
        console.print(_table(result, list(result.front), "not beaten in everything"), markup=False)
    if failed := [trial for trial in result.trials if trial.state == "failed"]:
        for trial in failed[:SHOWN]:
            console.print(f"trial {trial.number} failed: {trial.error}", markup=False, soft_wrap=True)
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed", "running") if state in states
    )
    console.print(f"{len(states)} of {result.wanted} trials: {counts}", soft_wrap=True)
    for name, shares in result.importances.items():
        console.print(
            f"what mattered for {name}: " + ", ".join(f"{key} {share:.0%}" for key, share in shares.items()),
            markup=False,
            soft_wrap=True,
        )
    if not result.importances:
        console.print("too few complete trials to say what mattered", soft_wrap=True)
    if result.best is not None:
        console.print(
            f"best configuration in {files[0]}: favorit train --config {files[0]}", markup=False, soft_wrap=True
        )
    console.print(f"also written: {', '.join(str(file) for file in files[1:])}", markup=False, soft_wrap=True)


def _table(result: TuneResult, trials: list[TrialRecord], title: str) -> Any:
    from favorit.cli.console import open_table
    from favorit.tuning.objective import OBJECTIVES

    fields = list(dict.fromkeys(key for trial in trials for key in trial.fields))
    latency = ["latency of a batch"] if "latency" in result.objectives else []
    table = open_table(title, trial="right", **dict.fromkeys([*result.objectives, *latency], "right"), run="left")
    for field in fields:
        table.add_column(field, justify="right", overflow="fold")
    for trial in trials:
        values = [
            OBJECTIVES[name].show(value) for name, value in zip(result.objectives, trial.values or (), strict=True)
        ]
        batch = (
            [f"{trial.latency['batch']:.2f} ms / {trial.latency['images']}" if trial.latency else ""] if latency else []
        )
        table.add_row(
            str(trial.number), *values, *batch, trial.run or "", *(_value(trial.fields.get(key, "")) for key in fields)
        )
    return table
