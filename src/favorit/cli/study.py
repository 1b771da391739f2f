"""`favorit study`: lists of configurations with a question."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.queue import queue
from favorit.cli.shared import with_fields

if TYPE_CHECKING:
    from favorit.study import Options, State

app = typer.Typer(
    help="Studies: list, plan, run, status, and a queue of them.", no_args_is_help=True, rich_markup_mode="rich"
)
app.command("queue")(queue)

Workers = Annotated[int, typer.Option(min=1, help="Processes that divide this machine's threads between them.")]


@dataclass(frozen=True)
class Asked:
    """Which study, changed how, and where: what plan, run and status are told alike."""

    name: Annotated[
        str, typer.Argument(help="A study of 'favorit study list', or a Python file with STUDY = ...", metavar="NAME")
    ]
    out: Annotated[Path, typer.Option("--out", "--runs", help="Where runs are kept, in folders or packed.")] = Path(
        "runs"
    )
    pack: Annotated[
        Path | None,
        typer.Option(
            help="Pack each finished run into this folder; runs that are packed there count as done.", metavar="FOLDER"
        ),
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Train that many epochs instead (warm-up in proportion): these are other runs."),
    ] = None
    subset: Annotated[
        int | None, typer.Option(min=1, help="Train and test on that many images instead: these are other runs.")
    ] = None
    seeds: Annotated[str | None, typer.Option(help="Repeat every point with these seeds, such as 0,1,2.")] = None
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only points whose name has this in it, or matches it (with * and ?). Repeatable.", metavar="PATTERN"
        ),
    ] = None
    scale: Annotated[
        str,
        typer.Option(help="published, smoke (1 epoch of a few images), or a reduction that the study defines: small."),
    ] = "published"
    protocol: Annotated[str, typer.Option(help="published, or sound: selection by validation, no augmented test.")] = (
        "published"
    )
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")
    ] = None

    def options(self) -> Options:
        from favorit.errors import FavoritError
        from favorit.study import Options

        try:
            seeds = tuple(int(part) for part in self.seeds.split(",")) if self.seeds else ()
        except ValueError:
            raise FavoritError(
                f"--seeds {self.seeds} is not valid: whole numbers with commas between them, such as 0,1,2"
            ) from None
        return Options(self.protocol, self.epochs, self.subset, seeds, tuple(self.only or ()), self.scale)


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
        ["study", "points", "question"],
        [(each.name, str(len(each.points)), each.question) for each in studies],
        right=["points"],
    )


@app.command("plan")
@with_fields
def plan(
    asked: Asked,
    workers: Workers = 1,
    estimated: Annotated[
        bool, typer.Option("--estimate/--no-estimate", help="Time a few steps of each distinct shape.")
    ] = True,
) -> None:
    """Check every point of a study, say which are done, and how long the others will take here.

    Examples: [bold]favorit study plan hybrids[/bold], [bold]favorit study plan mine.py --epochs 5 --no-estimate[/bold]
    """
    from favorit.cli.study_tables import plan_table
    from favorit.cli.timing import time_plan
    from favorit.study import load_study
    from favorit.study.plan import make_plan, stored_digests
    from favorit.study.runner import states

    known = partial(stored_digests, asked.out, asked.pack)
    planned = make_plan(load_study(asked.name), asked.options(), data_dir=asked.data_dir, digests=known)
    stand = states(planned, asked.out, asked.pack)
    plan_table(planned, stand, time_plan(planned, stand, workers) if estimated else {}, workers)


@app.command("run")
@with_fields
def run(
    asked: Asked,
    hours: Annotated[
        float | None, typer.Option(min=0.0, help="Begin no run after that time; those under way stop at a checkpoint.")
    ] = None,
    workers: Workers = 1,
    ray: Annotated[
        str | None, typer.Option(help="Run on a Ray cluster instead: its address, auto, or local.", metavar="ADDRESS")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="With --ray: CPUs, and so threads, of each run; else 1.")
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0.0, help="With --ray: GPUs of each run, such as 0.5; else 1 where the cluster has any."),
    ] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Write the curves of the runs it trains for TensorBoard into OUT/tensorboard."
        ),
    ] = False,
) -> None:
    """Run what is missing of a study. Rerun the same command to resume; finished runs, packed or not, are skipped.

    Examples: [bold]favorit study run quickstart[/bold],
    [bold]favorit study run hybrids --only data=mnist --epochs 5 --seeds 0,1,2 --workers 2[/bold],
    [bold]favorit study run hybrids --ray auto --cpus 4[/bold],
    [bold]favorit study run hybrids --pack results/runs[/bold]
    """
    from favorit.cli.console import open_console
    from favorit.cli.curves import Curves
    from favorit.cli.follow import follower
    from favorit.cli.study_tables import summary
    from favorit.study import load_study
    from favorit.study.plan import make_plan
    from favorit.study.runner import begin, choose, events

    backend = choose(workers=workers, ray=ray, cpus=cpus, gpus=gpus)
    curves = Curves(asked.out / "tensorboard") if tensorboard else None
    study = load_study(asked.name)
    console = open_console()
    console.print(study.question, soft_wrap=True, markup=False)
    report = begin(make_plan(study, asked.options(), data_dir=asked.data_dir, fetch=True), asked.out, asked.pack)
    console.print(
        f"{len(report.plan.tasks)} points: {len(report.results)} done, {len(report.missing)} to do",
        soft_wrap=True,
        markup=False,
    )
    with follower(console, report) as show, nullcontext() if curves is None else closing(curves):
        for event in events(report, backend, hours=hours, data_dir=asked.data_dir, accelerator=accelerator):
            show(event)
            if curves is not None:
                curves.hear(event, asked.out)
    summary(report)
    for name, reason in report.unpacked.items():
        typer.echo(f"not packed: {name}: {reason}")
    if report.errors:
        raise typer.Exit(1)


@app.command("status")
@with_fields
def status(
    asked: Asked,
    published: Annotated[
        bool, typer.Option("--published", help="Every published number of these points beside ours.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Say how every point of a study stands, with the published accuracy beside ours; give the options that it was run
    with.

    Examples: [bold]favorit study status hybrids --scale small --seeds 0,1,2 --runs results/runs[/bold],
    [bold]favorit study status kernels --published[/bold]
    """
    import json

    from favorit.cli import published_table
    from favorit.cli.study_tables import status_json, status_table
    from favorit.study import load_study
    from favorit.study.beside import pairs
    from favorit.study.references import unmatched
    from favorit.study.runner import records, status

    study, options = load_study(asked.name), asked.options()
    states = status(study, asked.out, pack=asked.pack, options=options, data_dir=asked.data_dir)
    if published:
        groups = list(dict.fromkeys(state.group for state in states))
        known = records(states, asked.out, asked.pack)
        found = pairs(study.group_references(options), known, groups, is_reduced=options.is_reduced)
        missing = unmatched(study.published)
        if as_json:
            typer.echo(json.dumps(published_table.as_json(found, missing)))
        else:
            published_table.published_table(study, options, found, missing)
    elif as_json:
        typer.echo(json.dumps(status_json(study, options, states)))
    else:
        status_table(study, options, states)
        _hint_others(asked, states)


def _hint_others(asked: Asked, states: Sequence[State]) -> None:
    """Says so where none of these runs is there but others are: most often the scale or the seeds are not those they
    were run with.
    """
    from favorit.training.find import stored_runs

    if any(state.status not in ("missing", "no data") for state in states):
        return
    if others := sum(1 for _ in stored_runs(asked.out)):
        typer.echo(
            f"{asked.out} has {others} other runs: give the --scale, --seeds and --protocol they were run with "
            f"('favorit runs {asked.out}' shows them)"
        )
