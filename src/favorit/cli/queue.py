"""`favorit study queue`: train the missing runs of a list of studies at low priority."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from favorit.cli.shared import DataDir, TableForm, Workers, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.study.queue import PlannedEntry, Queue

LOWEST_PRIORITY = 19


@with_fields
def queue(
    file: Annotated[Path, typer.Argument(help="A YAML list of {study, scale, protocol, seeds, only}.", metavar="FILE")],
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    pack: Annotated[
        Path | None, typer.Option(help="Pack each finished run into this folder; packed runs count as done.")
    ] = None,
    discard: Annotated[
        bool,
        typer.Option("--discard", help="With --pack: after packing a new run, delete its folder with the weights."),
    ] = False,
    workers: Workers = 1,
    nice: Annotated[
        int, typer.Option(min=0, max=LOWEST_PRIORITY, help="Niceness of the workers: 19 is the lowest priority.")
    ] = LOWEST_PRIORITY,
    listed: Annotated[bool, typer.Option("--list", help="Show the status of each entry and train nothing.")] = False,
    data_dir: DataDir = None,
    *,
    form: TableForm,
) -> None:
    """Train the missing runs of a queue of studies at low priority, and print a line for each. Rerun to resume.

    The table, of --list or at the end with an option such as --csv, has the number of runs of each entry.

    Examples: [bold]favorit study queue results/queue.yaml --pack results/runs --workers 2[/bold],
    [bold]favorit study queue results/queue.yaml --pack results/runs --list[/bold]
    """
    from favorit.cli.console import check_folders
    from favorit.cli.progress import queue_progress
    from favorit.errors import FavoritError
    from favorit.study.queue import held_queue, plan_queue, read_queue, run_queue

    if discard and pack is None:
        raise FavoritError("--discard needs --pack FOLDER: without it the results would be removed with the weights")
    if listed:
        planned = plan_queue(file, out, pack=pack, data_dir=data_dir, read_only=True)
        _table(form, planned, workers)
        for line in (*planned.problems, *planned.failures().values()):
            echo(line, err=True)
        form.say(f"\n{_counts(planned, workers)}")
        raise typer.Exit(1 if planned.problems else 0)
    read_queue(file)  # a mistake in the file creates no folder
    check_folders(out=out, pack=pack)
    os.nice(max(nice - os.nice(0), 0))
    with held_queue(out, pack):
        planned = plan_queue(file, out, pack=pack, data_dir=data_dir)
        known_failures = planned.failures()
        for problem in (*planned.problems, *known_failures.values()):
            echo(problem, err=True)
        form.say(_counts(planned, workers))
        with queue_progress(form.open_console(), planned, workers) as show:
            for entry, event in run_queue(planned, workers=workers, data_dir=data_dir, discard=discard):
                show(entry, event)
    if form.is_text:
        form.say(_counts(planned, workers))
    else:
        _table(form, planned, workers)
    for problem in (*planned.unpacked(), *planned.problems):
        echo(problem, err=True)
    # Runs that failed in an earlier call are printed above and do not change the exit status.
    if planned.problems or planned.unpacked() or planned.failures().keys() - known_failures.keys():
        raise typer.Exit(1)


def _counts(queue: Queue, workers: int) -> str:
    """The number of done, failed and missing runs and of runs without data, and the time for the missing ones."""
    from favorit.cli.study_tables import time_left

    counts = queue.counts()
    left = queue.seconds_left(workers)
    estimate = f", {time_left(left, workers)}" if left else ""
    entries = "1 entry" if len(queue.entries) == 1 else f"{len(queue.entries)} entries"
    runs = f"{sum(counts)} runs: {counts.done} done, {counts.failed} failed, {counts.missing} to do"
    blocked = f", {counts.without_data} without their data set" if counts.without_data else ""
    return f"{entries}, {runs}{blocked}{estimate}"


def _table(form: TableForm, queue: Queue, workers: int) -> None:
    """Prints the number of runs of each entry: all, done, failed and left."""

    def row(planned: PlannedEntry) -> dict[str, Any]:
        report = planned.report
        return {
            "entry": planned.entry.title,
            "seeds": list(planned.entry.seeds),
            "runs": len(report.plan.tasks),
            "done": len(report.results),
            "failed": len(report.errors),
            "left": len(report.missing),
            "only": list(planned.entry.only),
        }

    rows = list(map(row, queue.entries))
    if form.as_json:
        report = {"entries": rows, "problems": list(queue.problems), "seconds_left": queue.seconds_left(workers)}
        echo(json.dumps(report))
        return
    cells = [
        [" ".join(map(str, value)) if isinstance(value, list) else str(value) for value in each.values()]
        for each in rows
    ]
    form.write(
        ["entry", "seeds", "runs", "done", "failed", "left", "only"], cells, right=["runs", "done", "failed", "left"]
    )
