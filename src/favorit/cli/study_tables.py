"""A study as tables: what is planned, how it stands, what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from favorit.cli.columns import write_columns

if TYPE_CHECKING:
    from favorit.study.plan import Plan
    from favorit.study.runner import Report, State

# What a narrow screen has no room for, the least needed first.
OPTIONAL = ("run", "parameters", "s/epoch", "validation", "95 % interval")


def plan_table(plan: Plan, states: Sequence[State], seconds: Mapping[str, float], workers: int) -> None:
    """Every point with its run, how it stands, and the time it will take; then the sums, and what is known of published numbers."""
    rows = [(state.name, state.id, state.status, duration(seconds.get(state.name))) for state in states]
    write_columns(["point", "run", "status", "time left"], rows, right=["time left"], optional=OPTIONAL)
    typer.echo(f"\n{_counted(states)}")
    if seconds:
        typer.echo(f"about {duration(sum(seconds.values()) / workers)} left with {workers} worker{'s' if workers > 1 else ''} here")
    for reason in dict.fromkeys(plan.absent.values()):
        typer.echo(reason)
    _notes(plan, [state.name for state in states])


def status_table(states: Sequence[State]) -> None:
    """Every point with how it stands and what came out, then the sums."""
    rows = [
        (
            state.name,
            state.id,
            state.status,
            "" if state.epochs is None else str(state.epochs),
            "" if state.accuracy is None else f"{state.accuracy:.2%}",
            state.error or "",
        )
        for state in states
    ]
    write_columns(["point", "run", "status", "epochs", "test", "error"], rows, right=["epochs", "test"], optional=OPTIONAL)
    typer.echo(f"\n{_counted(states)}")


def summary(report: Report) -> None:
    """What came out, repetitions together; then what failed and what is left."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for task in report.plan.tasks:
        if task.name in report.results:
            groups.setdefault(task.group, []).append(report.results[task.name])
    if groups:
        typer.echo()
        titles = ["point", "runs", "test", "95 % interval", "validation", "parameters", "s/epoch", "flags"]
        rows = [(name, *_aggregated(results)) for name, results in groups.items()]
        write_columns(titles, rows, right=titles[1:-1], optional=OPTIONAL)
        if any(result["environment"].get("workers", 1) > 1 for result in report.results.values()):
            typer.echo("no s/epoch for runs that shared the machine: with one worker they are timed")
    counts = f"{len(report.results)} complete, {len(report.errors)} failed, {len(report.missing)} left"
    typer.echo(f"\n{report.plan.study.name} in {report.out}: {counts}{'; the same command goes on' if report.missing else ''}")
    for name, error in report.errors.items():
        typer.echo(f"failed: {name}: {error}")
    _notes(report.plan, list(report.results))


def _aggregated(results: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    from favorit.study.statistics import aggregate

    tested = aggregate([result["test"]["accuracy"] for result in results])
    spread = "" if tested.deviation is None else f" +- {tested.deviation:.2%}"
    validated = [result["validation"]["accuracy"] for result in results if (result.get("validation") or {}).get("accuracy") is not None]
    # Times of runs that shared the machine are nobody's.
    alone = [result["train_seconds_per_epoch"] for result in results if result["environment"].get("workers", 1) == 1]
    return (
        str(tested.n),
        f"{tested.mean:.2%}{spread}",
        "" if tested.low is None or tested.high is None else f"{max(tested.low, 0):.2%} .. {min(tested.high, 1):.2%}",
        f"{fmean(validated):.2%}" if validated else "",
        f"{results[0]['parameters']:,}",
        f"{fmean(alone):.2f}" if alone else "",
        " ".join(dict.fromkeys(flag for result in results for flag in result["flags"])),
    )


def _counted(states: Iterable[State]) -> str:
    counts = Counter(state.status for state in states)
    return f"{counts.total()} points: " + ", ".join(f"{count} {status}" for status, count in counts.items())


def _notes(plan: Plan, names: Sequence[str]) -> None:
    about = Counter(sentence for name in names for sentence in plan.study.flagged(name))
    for sentence, count in about.items():
        typer.echo(f"note: {sentence}{'' if count == len(names) else f' ({count} of {len(names)} points)'}")


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours, whichever reads best; nothing for None."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
