"""`favorit study`: list, plan and run studies, and show their status."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.queue import queue
from favorit.cli.shared import DataDir, SkipUnreadable, TableForm, Workers, with_fields
from favorit.errors import FavoritError
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.study import Options, State

app = typer.Typer(
    help="Studies: list, plan, run, status, and a queue of them.", no_args_is_help=True, rich_markup_mode="rich"
)
app.command("queue")(queue)


@dataclass(frozen=True, kw_only=True)
class StudyRuns:
    """The options that choose runs of a study: changes to it, and their folder."""

    out: Annotated[Path, typer.Option("--out", "--runs", help="Folder with run folders or packed runs.")] = Path("runs")
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Train this many epochs and scale warm-up in proportion. Changes the IDs of runs."),
    ] = None
    subset: Annotated[
        int | None,
        typer.Option(min=1, help="Use this many training images and as many test images. Changes the IDs of runs."),
    ] = None
    seeds: Annotated[str | None, typer.Option(help="Every point with each of these seeds, such as 0,1,2.")] = None
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only points whose name contains this text, or matches this pattern with * or ?. Repeatable.",
            metavar="PATTERN",
        ),
    ] = None
    scale: Annotated[
        str,
        typer.Option(
            help="published (as the study is written), smoke (1 epoch on a few images), or a scale of the study, "
            "such as small."
        ),
    ] = "published"
    protocol: Annotated[
        str, typer.Option(help="published, or sound (select by validation accuracy, no augmentation of test images).")
    ] = "published"
    skip_unreadable: SkipUnreadable = False
    data_dir: DataDir = None

    def __post_init__(self) -> None:
        if self.out.is_file():
            raise FavoritError(f"--out {self.out} is a file: give the folder of the runs")

    def options(self) -> Options:
        from favorit.study import Options

        try:
            seeds = tuple(int(part) for part in self.seeds.split(",")) if self.seeds else ()
        except ValueError:
            raise FavoritError(
                f"--seeds {self.seeds} is not valid: write integers separated by commas, such as 0,1,2"
            ) from None
        return Options(
            self.protocol,
            self.epochs,
            self.subset,
            seeds,
            tuple(self.only or ()),
            self.scale,
            skip_unreadable=self.skip_unreadable,
        )


@dataclass(frozen=True, kw_only=True)
class Selection(StudyRuns):
    """The arguments that plan, run and status share: a study, and which of its runs."""

    name: Annotated[
        str, typer.Argument(help="A name from 'favorit study list', or a Python file with STUDY = ...", metavar="NAME")
    ]
    pack: Annotated[
        Path | None,
        typer.Option(help="Pack each finished run into this folder; packed runs count as done.", metavar="FOLDER"),
    ] = None


@app.command("list")
@with_fields
def list_(*, form: TableForm) -> None:
    """List the built-in studies with their number of points and their question.

    Example: [bold]favorit study list[/bold]
    """
    import json

    from favorit.study import load_study
    from favorit.study.load import built_in

    studies = [load_study(name) for name in built_in()]
    if form.as_json:
        echo(
            json.dumps(
                [{"study": each.name, "points": len(each.points), "question": each.question} for each in studies]
            )
        )
        return
    form.write(
        ["study", "points", "question"],
        [(each.name, str(len(each.points)), each.question) for each in studies],
        right=["points"],
        wrap="question",
    )


@app.command("plan")
@with_fields
def plan(
    selection: Selection,
    workers: Workers = 1,
    estimated: Annotated[
        bool, typer.Option("--estimate/--no-estimate", help="Estimate the time left from a few steps of each model.")
    ] = True,
    again: Annotated[
        bool, typer.Option("--again", help="Time all models again. Timings of this machine are remembered otherwise.")
    ] = False,
    *,
    form: TableForm,
) -> None:
    """Check every point of a study. Show which points are done, and the time left on this machine.

    Examples: [bold]favorit study plan hybrids[/bold], [bold]favorit study plan mine.py --epochs 5 --no-estimate[/bold]
    """
    import json

    from favorit.cli.study_json import plan_json
    from favorit.cli.study_tables import plan_table, time_table
    from favorit.cli.timing import TimeLeft
    from favorit.study import load_study
    from favorit.study.plan import make_plan, stored_digests
    from favorit.study.runner import states

    digests = partial(stored_digests, selection.out, selection.pack)
    planned = make_plan(load_study(selection.name), selection.options(), data_dir=selection.data_dir, digests=digests)
    found = states(planned, selection.out, selection.pack)
    time_left = TimeLeft(planned, found, workers, again) if estimated else None
    if time_left is not None and form.is_text and not time_left.is_known:  # print the plan before models are timed
        plan_table(form, planned, found, {}, workers)
        form.say()
        time_table(form, time_left.seconds(), workers)
        return
    seconds = {} if time_left is None else time_left.seconds()
    if form.as_json:
        echo(json.dumps(plan_json(planned, found, seconds, workers)))
    else:
        plan_table(form, planned, found, seconds, workers)


@app.command("run")
@with_fields
def run(
    selection: Selection,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Time limit in hours: then no new run starts, and each running one stops at its next checkpoint.",
        ),
    ] = None,
    workers: Workers = 1,
    ray: Annotated[
        str | None, typer.Option(help="Run on a Ray cluster: its address, auto, or local.", metavar="ADDRESS")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="With --ray: CPUs and threads of each run (default: 1).")
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0.0, help="With --ray: GPUs of each run, such as 0.5 (default: 1 if the cluster has any)."),
    ] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    tensorboard: Annotated[
        bool,
        typer.Option("--tensorboard", help="Write the training curves of each run to OUT/tensorboard."),
    ] = False,
    *,
    form: TableForm,
) -> None:
    """Train the missing runs of a study. Rerun the same command to resume; finished runs are skipped.

    Examples: [bold]favorit study run quickstart[/bold],
    [bold]favorit study run hybrids --only data=mnist --epochs 5 --seeds 0,1,2 --workers 2[/bold],
    [bold]favorit study run hybrids --ray auto --cpus 4[/bold],
    [bold]favorit study run hybrids --pack results/runs[/bold]
    """
    import json

    from favorit.cli.console import check_folders
    from favorit.cli.progress import study_progress
    from favorit.cli.study_json import summary_json
    from favorit.cli.study_tables import merged, summary
    from favorit.cli.tensorboard import Curves
    from favorit.study import load_study
    from favorit.study.runner import start

    check_folders(out=selection.out, pack=selection.pack)
    curves = Curves(selection.out / "tensorboard") if tensorboard else None
    study = load_study(selection.name)
    console = form.open_console()
    console.print(study.question, soft_wrap=True, markup=False)
    report, events = start(
        study,
        selection.out,
        pack=selection.pack,
        options=selection.options(),
        workers=workers,
        hours=hours,
        ray=ray,
        cpus=cpus,
        gpus=gpus,
        data_dir=selection.data_dir,
        accelerator=accelerator,
    )
    console.print(
        f"{len(report.plan.tasks)} points: {len(report.results)} done, {len(report.missing)} to do",
        soft_wrap=True,
        markup=False,
    )
    merged(form, report.plan.tasks)
    for note in dict.fromkeys(report.plan.notes):
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    with closing(events), study_progress(console, report) as show, nullcontext() if curves is None else closing(curves):
        for event in events:
            show(event)
            if curves is not None:
                curves.on_task_event(event, selection.out)
    summary(form, report)
    if form.as_json:
        echo(json.dumps(summary_json(report)))
    for name, reason in report.unpacked.items():
        form.say(f"not packed: {name}: {reason}")
    if report.errors:
        raise typer.Exit(1)


@app.command("status")
@with_fields
def status(
    selection: Selection,
    published: Annotated[
        bool, typer.Option("--published", help="Show every published number of these points next to ours.")
    ] = False,
    *,
    form: TableForm,
) -> None:
    """Show the status of every point of a study, and the published accuracy next to ours.

    Use the same --scale, --seeds, --protocol, --epochs and --subset as for 'favorit study run'.

    Examples: [bold]favorit study status hybrids --scale small --seeds 0,1,2 --runs results/runs[/bold],
    [bold]favorit study status kernels --published[/bold]
    """
    import json

    from favorit.cli import published_table
    from favorit.cli.study_json import status_json
    from favorit.cli.study_tables import status_table
    from favorit.study import load_study
    from favorit.study.pairs import pairs
    from favorit.study.references import unmatched
    from favorit.study.runner import records, status

    study, options = load_study(selection.name), selection.options()
    states = status(study, selection.out, pack=selection.pack, options=options, data_dir=selection.data_dir)
    if published:
        groups = list(dict.fromkeys(state.group for state in states))
        known = records(states, selection.out, selection.pack)
        found = pairs(study.group_references(options), known, groups, is_reduced=options.is_reduced)
        missing = unmatched(study.published)
        if form.as_json:
            echo(json.dumps(published_table.as_json(found, missing)))
        else:
            published_table.published_table(form, study, options, found, missing)
    elif form.as_json:
        echo(json.dumps(status_json(study, options, states)))
    else:
        status_table(form, study, options, states)
        _hint_others(form, selection, states)


def _hint_others(form: TableForm, selection: Selection, states: Sequence[State]) -> None:
    """Prints a hint if the folder has runs, but none of this selection: the scale or the seeds are often wrong."""
    from favorit.training.find import stored_runs

    if any(state.status not in ("missing", "no data") for state in states):
        return
    if others := sum(1 for _ in stored_runs(selection.out)):
        form.say(
            f"{selection.out} has {others} other runs: give the --scale, --seeds and --protocol they were run with "
            f"('favorit runs {selection.out}' lists them)"
        )
