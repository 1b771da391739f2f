"""`favorit study queue`: works through a list of studies in the background."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from favorit.study.queue import Part, Queue
    from favorit.study.tasks import TaskEvent

LOWEST = 19


def queue(
    file: Annotated[Path, typer.Argument(help="A YAML list of {study, scale, protocol, seeds, only}.", metavar="FILE")],
    out: Annotated[Path, typer.Option(help="Where runs are trained.")] = Path("runs"),
    pack: Annotated[
        Path | None, typer.Option(help="Pack each finished run into this folder; packed runs count as done.")
    ] = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="With --pack: remove a run's folder, weights included, once it is packed.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that divide this machine's threads between them.")] = 1,
    nice: Annotated[
        int,
        typer.Option(min=0, max=LOWEST, help="How far to step back for other processes: 19 is the lowest priority."),
    ] = LOWEST,
    listed: Annotated[bool, typer.Option("--list", help="Say how each entry stands, and train nothing.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")
    ] = None,
) -> None:
    """Train what is missing of a queue of studies, at low priority, one line for each finished run. Rerun to resume.

    Examples: [bold]favorit study queue results/queue.yaml --pack results/runs --workers 2[/bold],
    [bold]favorit study queue results/queue.yaml --pack results/runs --list[/bold]
    """
    from favorit.errors import FavoritError
    from favorit.study.queue import held_queue, plan_queue, run_queue
    from favorit.study.tasks import Ended

    if discard and pack is None:
        raise FavoritError("--discard needs --pack FOLDER: without it the results would be removed with the weights")
    if listed:
        planned = plan_queue(file, out, pack=pack, data_dir=data_dir, is_only_read=True)
        _table(planned, workers)
        raise typer.Exit(1 if planned.problems else 0)
    os.nice(max(nice - os.nice(0), 0))
    with held_queue(out, pack):
        planned = plan_queue(file, out, pack=pack, data_dir=data_dir)
        before = planned.failures()
        for line in (*planned.problems, *before.values()):
            typer.echo(line, err=True)
        typer.echo(_standing(planned, workers))
        for part, event in run_queue(planned, workers=workers, data_dir=data_dir):
            if said := _line(planned, part, event, workers):
                typer.echo(said)
            # Only what this queue trained: a folder that another command made may be wanted for its weights.
            if discard and isinstance(event, Ended) and not event.elsewhere and part.report.keep(event.task):
                shutil.rmtree(part.report.out / event.task.id, ignore_errors=True)
    typer.echo(_standing(planned, workers))
    for line in (*planned.unpacked(), *planned.problems):
        typer.echo(line, err=True)
    # A run that failed before is a result, and was said above.
    if planned.problems or planned.unpacked() or planned.failures().keys() - before.keys():
        raise typer.Exit(1)


def _line(queue: Queue, part: Part, event: TaskEvent, workers: int) -> str | None:
    """One line for a run that is over; None for other events."""
    from favorit.cli.study_tables import duration
    from favorit.study.tasks import Broke, Ended

    if not isinstance(event, Ended | Broke):
        return None
    total = len(queue.ids())
    place = f"[{total - len(queue.missing())}/{total}] {part.entry.title}: {event.task.name}"
    if isinstance(event, Broke):
        return f"{place}   {'stopped' if event.later else 'failed'}: {event.error}"
    left = queue.seconds_left(workers)
    ahead = f"   about {duration(left)} left" if left else ""
    return f"{place}   test {event.result['test']['accuracy']:.2%}   {duration(event.result['total_seconds'])}{ahead}"


def _standing(queue: Queue, workers: int) -> str:
    from favorit.cli.study_tables import duration

    total, missing, failed, left = (
        len(queue.ids()),
        len(queue.missing()),
        len(queue.failures()),
        queue.seconds_left(workers),
    )
    estimate = f", about {duration(left)} left with {workers} worker{'s' if workers > 1 else ''}" if left else ""
    entries = "1 entry" if len(queue.parts) == 1 else f"{len(queue.parts)} entries"
    return f"{entries}, {total} runs: {total - missing - failed} done, {failed} failed, {missing} to do{estimate}"


def _table(queue: Queue, workers: int) -> None:
    from favorit.cli.columns import write_columns

    def row(part: Part) -> tuple[Any, ...]:
        report = part.report
        seeds = ",".join(map(str, part.entry.seeds))
        counts = (len(report.plan.tasks), len(report.results), len(report.errors), len(report.missing))
        return (part.entry.title, seeds, *map(str, counts), " ".join(part.entry.only))

    titles = ["entry", "seeds", "runs", "done", "failed", "left", "only"]
    write_columns(titles, [row(part) for part in queue.parts], right=titles[2:6])
    for line in (*queue.problems, *queue.failures().values()):
        typer.echo(line, err=True)
    typer.echo(f"\n{_standing(queue, workers)}")
