"""`favorit tune`: searches a space for the best configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.shared import DataDir, SkipUnreadable, TableForm, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.tuning.result import TrialRecord, TuneResult

MAX_ROWS = 10
SPACES = (
    "quickstart, kernels-vit, kernels-relu, kernels-elu-first, kernels-elu, kernels-gelu-first, kernels-gelu, "
    "kernels-exp-grid, kernels-exp, kernels-ftheta"
)


@with_fields
def tune(
    space: Annotated[
        str, typer.Argument(help=f"A built-in search space ({SPACES}), or a YAML file of fields.", metavar="SPACE")
    ],
    data: Annotated[str | None, typer.Option(help="A data set ('favorit data list'), or folder:PATH.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="A model ('favorit list presets'); replaces the model of the space.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A YAML file as for 'favorit train'; replaces the base configuration of the space."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any field of the base configuration, as section.key=value. Repeatable.",
            metavar="FIELD=VALUE",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Short for --set train.epochs=N.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampler and of each run.")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Total number of trials; default: the whole grid, or 20.")
    ] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe, grid or random; default: that of the space.")] = None,
    pruner: Annotated[
        str | None, typer.Option(help="median, hyperband or none; default: median, or none with two objectives.")
    ] = None,
    objective: Annotated[str, typer.Option(help="accuracy, or accuracy,latency for a Pareto front.")] = "accuracy",
    storage: Annotated[
        str | None,
        typer.Option(
            help="sqlite:///FILE, journal:FILE or postgresql://user@host/database; default: OUT/tune.db.",
            metavar="URL",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that run trials.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder of runs.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="The name of the study; default: that of the space.", metavar="STUDY")
    ] = None,
    skip_unreadable: SkipUnreadable = False,
    data_dir: DataDir = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    *,
    form: TableForm,
) -> None:
    """Search a space for the best configuration. Rerun to resume; several processes may run the same command at once.

    Examples: [bold]favorit tune quickstart --trials 12[/bold],
    [bold]favorit tune kernels-relu --trials 50 --pruner hyperband --workers 2[/bold],
    [bold]favorit tune my.yaml --config base.yaml --objective accuracy,latency --storage
    postgresql://me@host/tuning[/bold]
    """
    from favorit.cli.configuration import build_config
    from favorit.cli.console import check_folders
    from favorit.cli.progress import tuning_progress
    from favorit.errors import FavoritError
    from favorit.fields import fields_set, replace_fields
    from favorit.process import keep_large_buffers
    from favorit.tuning import read_space
    from favorit.tuning import tune as search
    from favorit.tuning.figures import draw
    from favorit.tuning.result import write_best, write_front

    check_folders(out=out)
    keep_large_buffers()
    console = form.open_console()
    searched = read_space(space)
    base = build_config(
        config, preset, settings or [], data=data, epochs=epochs, seed=seed, skip_unreadable=skip_unreadable
    )
    if config is None:
        kept = searched.base if preset is None else searched.base.replace(model=base.model)
        base = replace_fields(kept, fields_set(base))
    with tuning_progress(console) as on_event:
        result = search(
            searched,
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
            listen=on_event,
        )
    files = [out / f"{result.name}-best.yaml", out / f"{result.name}-tuning.png"]
    write_best(result, files[0])
    draw(result, files[1])
    if len(result.objectives) > 1:
        files.append(out / f"{result.name}-front.csv")
        write_front(result, files[2])
    _show(form, result, files)
    if form.as_json:
        best = (
            None
            if result.best is None
            else {"trial": result.front[0].number, "run": result.front[0].run, **result.best.changed()}
        )
        echo(
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
        raise FavoritError(f"no trial of the study {result.name!r} is complete: see the errors above")


def _show(form: TableForm, result: TuneResult, files: list[Path]) -> None:
    ranked, states = result.ranked(), [trial.state for trial in result.trials]
    best = ranked[:MAX_ROWS] if form.is_text else ranked
    _write(form, result, best, f"{result.name}: best trials by validation accuracy")
    if len(result.objectives) > 1:
        form.say()
        _write(form, result, result.front, "Pareto front: trials that no other trial dominates", is_main=False)
    form.say()
    for trial in [trial for trial in result.trials if trial.state == "failed"][:MAX_ROWS]:
        form.say(f"trial {trial.number} failed: {trial.error}")
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed", "running") if state in states
    )
    form.say(f"{len(states)} of {result.wanted} trials: {counts}")
    for name, shares in result.importances.items():
        form.say(f"importance for {name}: " + ", ".join(f"{key} {share:.0%}" for key, share in shares.items()))
    if not result.importances:
        form.say("too few complete trials for importances")
    if result.best is not None:
        form.say(f"best configuration: {files[0]}; train it with: favorit train --config {files[0]}")
    form.say(f"also written: {', '.join(str(file) for file in files[1:])}")


def _write(
    form: TableForm, result: TuneResult, trials: Sequence[TrialRecord], heading: str, is_main: bool = True
) -> None:
    from favorit.cli.progress import format_value
    from favorit.tuning.objective import OBJECTIVES

    fields = list(dict.fromkeys(key for trial in trials for key in trial.fields))
    latency = ["latency of a batch"] if "latency" in result.objectives else []
    rows = []
    for trial in trials:
        values = [
            OBJECTIVES[name].format(value) for name, value in zip(result.objectives, trial.values or (), strict=True)
        ]
        batch = (
            [f"{trial.latency['batch']:.2f} ms for {trial.latency['images']} images" if trial.latency else ""]
            if latency
            else []
        )
        changed = [format_value(trial.fields.get(key, "")) for key in fields]
        rows.append([str(trial.number), *values, *batch, trial.run or "", *changed])
    titles = ["trial", *result.objectives, *latency, "run", *fields]
    right = [title for title in titles if title != "run"]
    form.write(titles, rows, right=right, heading=heading, optional=["run"], is_main=is_main)
