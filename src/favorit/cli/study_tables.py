"""Tables of a study: the plan, the status, the results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from favorit.cli.columns import terminal_width, write_columns

if TYPE_CHECKING:
    from favorit.published import Reference
    from favorit.study import Options, Study
    from favorit.study.plan import Plan
    from favorit.study.runner import Report, State

References = Mapping[str, Sequence["Reference"]]

BEST = "best test (test-selected)"
# Columns to drop on a narrow terminal, the first one first.
OPTIONAL = (
    "run",
    "parameters",
    "s/epoch",
    "validation",
    "epochs",
    BEST,
    "sd",
    "95 % interval",
    "error",
    "flags",
    "status",
    "runs",
)
TEXT_COLUMNS = ("point", "run", "status", "flags", "error")
VALUES_WIDTH = 52  # characters of a terminal line reserved for the columns after the name


def plan_table(plan: Plan, states: Sequence[State], seconds: Mapping[str, float], workers: int) -> None:
    """Prints every point with its run, status and estimated time; then totals, missing data sets and notes."""
    rows = [(state.name, state.id, state.status, duration(seconds.get(state.name))) for state in states]
    heading = f"{plan.study.name}: {describe_options(plan.options)}"
    write_columns(
        ["point", "run", "status", "time left"], rows, right=["time left"], optional=OPTIONAL, heading=heading
    )
    typer.echo(f"\n{_status_counts(states)}")
    if seconds:
        typer.echo(f"{time_left(sum(seconds.values()) / workers, workers)} here")
    for reason in dict.fromkeys(plan.absent.values()):
        typer.echo(reason)
    notes(plan.study, [state.name for state in states])


def status_table(study: Study, options: Options, states: Sequence[State]) -> None:
    """Prints every point with status, result and published accuracy; then means over seeds and folds; then totals."""
    references = group_references(study, options)
    rows = [_state_row(state, references.get(state.group, ())) for state in states]
    _point_table(rows, f"{study.name}: {describe_options(options)}")
    groups: dict[str, list[dict[str, Any]]] = {}
    for state in states:
        if state.result is not None:
            groups.setdefault(state.group, []).append(state.result)
    if any(len(results) > 1 for results in groups.values()):
        typer.echo()
        _result_table(groups, references, "mean over seeds and folds")
    typer.echo(f"\n{_status_counts(states)}")
    explain_scale(study, options, [state.group for state in states])
    explain_flags([result for results in groups.values() for result in results])
    notes(study, [state.name for state in states])


def status_json(study: Study, options: Options, states: Sequence[State]) -> dict[str, Any]:
    """`status_table` as JSON data: the options, every point, and means over seeds and folds."""
    from favorit.study.statistics import aggregate

    references = group_references(study, options)

    def published(group: str) -> list[float | tuple[float, float]]:
        return [each.value for each in references.get(group, ()) if each.quantity.is_headline]

    points = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for state in states:
        result = state.result or {}
        known = {name: value for name, value in vars(state).items() if name != "result"}
        known |= {
            "flags": result.get("flags", []),
            "best_test": result.get("best_test"),
            "published": published(state.group),
        }
        points.append(known)
        if state.result is not None:
            groups.setdefault(state.group, []).append(state.result)
    return {
        "study": study.name,
        "scale": options.shown_scale,
        "seeds": list(options.seeds),
        "protocol": options.protocol,
        "points": points,
        "groups": [
            {
                "group": name,
                **vars(aggregate([each["test"]["accuracy"] for each in results])),
                "published": published(name),
            }
            for name, results in groups.items()
        ],
        "notes": list(dict.fromkeys(sentence for state in states for sentence in study.flagged(state.name))),
    }


def summary(report: Report) -> None:
    """Prints mean results over seeds and folds next to the published numbers; then counts and failed runs."""
    plan = report.plan
    groups: dict[str, list[dict[str, Any]]] = {}
    for task in plan.tasks:
        if task.name in report.results:
            groups.setdefault(task.group, []).append(report.results[task.name])
    references = group_references(plan.study, plan.options)
    if groups:
        typer.echo()
        _result_table(groups, references, f"{plan.study.name}: {describe_options(plan.options)}")
    counts = f"{len(report.results)} complete, {len(report.errors)} failed, {len(report.missing)} left"
    typer.echo(f"\n{plan.study.name} in {report.out}: {counts}{'; rerun to resume' if report.missing else ''}")
    for name, error in report.errors.items():
        typer.echo(f"failed: {name}: {error}")
    explain_scale(plan.study, plan.options, groups)
    explain_flags(list(report.results.values()))
    notes(plan.study, list(report.results))


def describe_options(options: Options) -> str:
    """The scale, seeds (if given) and protocol as text for the heading of a table."""
    seeds = [f"seeds {', '.join(map(str, options.seeds))}"] if options.seeds else []
    return "; ".join([f"scale {options.shown_scale}", *seeds, f"protocol {options.protocol}"])


def explain_scale(study: Study, options: Options, groups: Iterable[str]) -> None:
    """If the scale is not the published one, prints why numbers differ from ours: images, epochs or another model."""
    if not options.is_reduced or not study.published:
        return
    typer.echo(f"scale {options.shown_scale}: published numbers come from another number of images or epochs")
    shown = set(groups)
    for group, differs in study.other_models(options).items():
        if group in shown:
            typer.echo(f"no published number for {group}: another model at this scale ({differs})")


def group_references(study: Study, options: Options) -> References:
    """The published numbers of each group. Prints one line and returns none if a published table is damaged."""
    from favorit.errors import FavoritError

    try:
        return study.group_references(options)
    except FavoritError as error:
        typer.echo(f"published numbers are not shown: {error}", err=True)
        return {}


def explain_flags(results: Sequence[dict[str, Any]]) -> None:
    """Prints one line for each flag: its meaning, and how many runs have it."""
    from favorit.published import FLAGS

    for flag, count in Counter(flag for result in results for flag in _flags([result])).items():
        runs = f"all {count} runs" if count == len(results) else f"{count} of {len(results)} runs"
        typer.echo(f"{flag}: {FLAGS.get(flag, 'a flag of the run')} ({runs})")


def _state_row(state: State, references: Sequence[Reference]) -> dict[str, str]:
    results = [] if state.result is None else [state.result]
    return {
        "point": state.name,
        "run": state.id,
        "status": state.status,
        "epochs": "" if state.epochs is None else str(state.epochs),
        "test": "" if state.accuracy is None else f"{state.accuracy:.2%}",
        **_published(references, state.accuracy),
        BEST: _best_test(results),
        "flags": " ".join(_flags(results)),
        "error": state.error or "",
    }


def _result_table(groups: Mapping[str, Sequence[dict[str, Any]]], references: References, heading: str) -> None:
    _point_table([_result_row(name, results, references.get(name, ())) for name, results in groups.items()], heading)
    if _shared([result for results in groups.values() for result in results]):
        typer.echo("s/epoch is hidden for runs that shared the machine with other workers or ran at low priority")


def _result_row(name: str, results: Sequence[dict[str, Any]], references: Sequence[Reference]) -> dict[str, str]:
    from favorit.study.statistics import aggregate

    tested = aggregate([result["test"]["accuracy"] for result in results])
    validated = [
        result["validation"]["accuracy"]
        for result in results
        if (result.get("validation") or {}).get("accuracy") is not None
    ]
    # Times of runs that shared the machine are not comparable.
    alone = [result["train_seconds_per_epoch"] for result in results if not _shared([result])]
    return {
        "point": name,
        "runs": str(tested.n),
        "test": f"{tested.mean:.2%}",
        "sd": "" if tested.deviation is None else f"{tested.deviation:.2%}",
        "95 % interval": ""
        if tested.low is None or tested.high is None
        else f"{max(tested.low, 0):.2%} .. {min(tested.high, 1):.2%}",
        **_published(references, tested.mean),
        BEST: _best_test(results),
        "validation": f"{fmean(validated):.2%}" if validated else "",
        "parameters": f"{results[0]['parameters']:,}",
        "s/epoch": f"{fmean(alone):.2f}" if alone else "",
        "flags": " ".join(_flags(results)),
    }


def _published(references: Sequence[Reference], accuracy: float | None) -> dict[str, str]:
    """The published accuracies of a point, and the difference (ours - published) in percentage points."""
    headline = [reference for reference in references if reference.quantity.is_headline]
    differences = [] if accuracy is None else [f"{reference.difference(100 * accuracy):+.2f}" for reference in headline]
    return {"published": ", ".join(f"{reference.text}%" for reference in headline), "diff": ", ".join(differences)}


def _best_test(results: Sequence[dict[str, Any]]) -> str:
    """The best test accuracy of any epoch, as a mean over runs; only runs with train.watch=test record it."""
    best = [result["best_test"]["accuracy"] for result in results if result.get("best_test")]
    return f"{fmean(best):.2%}" if best else ""


def _flags(results: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(flag for result in results for flag in result.get("flags", [])))


def _shared(results: Iterable[dict[str, Any]]) -> bool:
    """True if any of the runs shared the machine."""
    from favorit.training.records import had_machine_alone

    return not all(had_machine_alone(result.get("environment")) for result in results)


def _point_table(rows: Sequence[Mapping[str, str]], heading: str) -> None:
    """Prints one row for each point. Leaves out empty columns, and the flags if all runs have the same ones: the lines
    below the table explain them.
    """
    titles = [title for title in rows[0] if title == "test" or any(row[title] for row in rows)]
    if len({row["flags"] for row in rows if row["test"]}) == 1 and "flags" in titles:
        titles.remove("flags")
    names = [row["point"] for row in rows]
    width = terminal_width(sys.stdout)
    sections = (
        None
        if width is None or max(map(len, names)) <= width - VALUES_WIDTH
        else _section_titles(names, width - VALUES_WIDTH)
    )
    if sections is not None:
        names = [name.removeprefix(f"{section} ") for name, section in zip(names, sections, strict=True)]
    cells = [[name, *(row[title] for title in titles[1:])] for name, row in zip(names, rows, strict=True)]
    right = [title for title in titles if title not in TEXT_COLUMNS]
    write_columns(titles, cells, right=right, optional=OPTIONAL, heading=heading, sections=sections)


def _section_titles(names: Sequence[str], longest: int) -> list[str]:
    """A section title for each name: its first fields. The number of fields is the smallest that leaves at most
    `longest` characters of every name. The last field always stays in the name.
    """
    split = [name.split(" ") for name in names]
    for count in range(max(map(len, split))):
        sections = [" ".join(fields[: min(count, len(fields) - 1)]) for fields in split]
        if all(len(name) - len(section) <= longest for name, section in zip(names, sections, strict=True)):
            break
    return sections


def _status_counts(states: Iterable[State]) -> str:
    counts = Counter(state.status for state in states)
    return f"{counts.total()} points: " + ", ".join(f"{count} {status}" for status, count in counts.items())


def notes(study: Study, names: Sequence[str]) -> None:
    """Prints each remark of the study that applies to these points."""
    counts = Counter(sentence for name in names for sentence in study.flagged(name))
    for sentence, count in counts.items():
        typer.echo(f"note: {sentence}{'' if count == len(names) else f' ({count} of {len(names)} points)'}")


def time_left(seconds: float, workers: int) -> str:
    return f"about {duration(seconds)} left with {workers} worker{'s' if workers > 1 else ''}"


def duration(seconds: float | None) -> str:
    """A time in seconds, minutes or hours; empty for None."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
