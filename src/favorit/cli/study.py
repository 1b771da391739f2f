"""`favorit study`: lists of configurations with a question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from favorit.study import Options

app = typer.Typer(help="Studies: list, plan, run, status.", no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(help="A study of 'favorit study list', or a Python file with STUDY = ...", metavar="NAME")]
Out = Annotated[Path, typer.Option(help="Where runs are kept.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Train that many epochs instead (warm-up in proportion): these are other runs.")]
Subset = Annotated[int | None, typer.Option(min=1, help="Train and test on that many images instead: these are other runs.")]
Seeds = Annotated[str | None, typer.Option(help="Repeat every point with these seeds, such as 0,1,2.")]
Only = Annotated[str | None, typer.Option(help="Only points whose name has this in it, or matches it (with * and ?).", metavar="PATTERN")]
Protocol = Annotated[str, typer.Option(help="published, or sound: selection by validation, no augmented test.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes that divide this machine's threads between them.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")]


def _options(epochs: int | None, subset: int | None, seeds: str | None, only: str | None, protocol: str) -> Options:
    from favorit.errors import FavoritError
    from favorit.study import Options

    try:
        numbers = tuple(int(part) for part in seeds.split(",")) if seeds else ()
    except ValueError:
        raise FavoritError(f"--seeds {seeds} is not valid: whole numbers with commas between them, such as 0,1,2") from None
    return Options(protocol, epochs, subset, numbers, only)


@app.command("list")
def list_() -> None:
    """List the built-in studies: how many points each has, and its question.

    Example: [bold]favorit study list[/bold]
    """
    from favorit.cli.columns import write_columns
    from favorit.study import load_study
    from favorit.study.load import built_in

    studies = [load_study(name) for name in built_in()]
    write_columns(
        ["study", "points", "question"], [(each.name, str(len(each.points)), each.question) for each in studies], right=["points"]
    )


@app.command("plan")
def plan(
    name: Name,
    out: Out = Path("runs"),
    epochs: Epochs = None,
    subset: Subset = None,
    seeds: Seeds = None,
    only: Only = None,
    protocol: Protocol = "published",
    workers: Workers = 1,
    estimated: Annotated[bool, typer.Option("--estimate/--no-estimate", help="Time a few steps of each distinct shape.")] = True,
    data_dir: DataDir = None,
) -> None:
    """Check every point of a study, say which are done, and how long the others will take here.

    Examples: [bold]favorit study plan hybrids[/bold], [bold]favorit study plan mine.py --epochs 5 --no-estimate[/bold]
    """
    from favorit.cli.study_tables import plan_table
    from favorit.cli.timing import time_plan
    from favorit.study import load_study
    from favorit.study.plan import make_plan
    from favorit.study.runner import states

    planned = make_plan(load_study(name), _options(epochs, subset, seeds, only, protocol), data_dir=data_dir)
    stand = states(planned, out)
    plan_table(planned, stand, time_plan(planned, stand, workers) if estimated else {}, workers)


@app.command("run")
def run(
    name: Name,
    out: Out = Path("runs"),
    epochs: Epochs = None,
    subset: Subset = None,
    seeds: Seeds = None,
    only: Only = None,
    protocol: Protocol = "published",
    hours: Annotated[
        float | None, typer.Option(min=0.0, help="Begin no run after that time; those under way stop at a checkpoint.")
    ] = None,
    workers: Workers = 1,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster instead: its address, auto, or local.", metavar="ADDRESS")] = None,
    data_dir: DataDir = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Run what is missing of a study; the same command goes on where it was interrupted, and repeats nothing that is finished.

    Examples: [bold]favorit study run quickstart[/bold],
    [bold]favorit study run hybrids --only data=mnist --epochs 5 --seeds 0,1,2 --workers 2[/bold]
    """
    from favorit.cli.console import open_console
    from favorit.cli.follow import follower
    from favorit.cli.study_tables import summary
    from favorit.study import load_study
    from favorit.study.plan import make_plan
    from favorit.study.runner import begin, events

    study = load_study(name)
    console = open_console()
    console.print(study.question, soft_wrap=True, markup=False)
    report = begin(make_plan(study, _options(epochs, subset, seeds, only, protocol), data_dir=data_dir, fetch=True), out)
    console.print(f"{len(report.plan.tasks)} points: {len(report.results)} done, {len(report.missing)} to do", soft_wrap=True, markup=False)
    with follower(console, report) as show:
        for event in events(report, workers=workers, hours=hours, ray=ray, data_dir=data_dir, accelerator=accelerator):
            show(event)
    summary(report)
    if report.errors:
        raise typer.Exit(1)


@app.command("status")
def status(
    name: Name,
    out: Out = Path("runs"),
    epochs: Epochs = None,
    subset: Subset = None,
    seeds: Seeds = None,
    only: Only = None,
    protocol: Protocol = "published",
    data_dir: DataDir = None,
) -> None:
    """Say how every point of a study stands; give the options that it was run with.

    Example: [bold]favorit study status hybrids --only data=mnist[/bold]
    """
    from favorit.cli.study_tables import status_table
    from favorit.study.runner import status

    status_table(status(name, out, options=_options(epochs, subset, seeds, only, protocol), data_dir=data_dir))
