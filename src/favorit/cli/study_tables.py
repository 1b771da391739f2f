"""Tables of a study: the plan, the status, the results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from favorit.cli.columns import terminal_width
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.cli.shared import TableForm
    from favorit.published import Reference
    from favorit.study import Options, Study
    from favorit.study.plan import Plan
    from favorit.study.runner import Report, State
    from favorit.study.tasks import Task

References = Mapping[str, Sequence["Reference"]]
# The results of the runs of each group; None for a run without result.
Groups = dict[str, list[dict[str, Any] | None]]

BEST = "best test (test-selected)"
# The columns of means over runs.
RESULT_TITLES = (
    *("point", "runs", "missing", "test", "sd", "95 % interval", "published", "diff"),
    *(BEST, "validation", "parameters", "s/epoch", "flags"),
)
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
TEXT_COLUMNS = ("section", "point", "run", "status", "flags", "error")
VALUES_WIDTH = 52  # characters of a terminal line reserved for the columns after the name


def plan_table(
    form: TableForm, plan: Plan, states: Sequence[State], seconds: Mapping[str, float], workers: int
) -> None:
    """Prints every point with its run, status and estimated time; then totals, missing data sets and notes."""
    titles = ["point", "run", "status", *(["time left"] if seconds else [])]
    rows = [(state.name, state.id, state.status, duration(seconds.get(state.name)))[: len(titles)] for state in states]
    heading = f"{plan.study.name}: {describe_options(plan.options)}"
    form.write(titles, rows, right=["time left"], optional=OPTIONAL, heading=heading)
    form.say(f"\n{_status_counts(states)}")
    if seconds:
        form.say(f"{time_left(sum(seconds.values()) / workers, workers)} here")
    for reason in dict.fromkeys(plan.absent.values()):
        form.say(reason)
    for line in _tiled_layouts(plan):
        form.say(line)
    for note in dict.fromkeys(plan.notes):
        form.say(f"note: {note}")
    notes(form, plan.study, [state.name for state in states])
    merged(form, states)


def time_table(form: TableForm, seconds: Mapping[str, float], workers: int) -> None:
    """Prints the estimated time of every unfinished point, and the total."""
    rows = [(name, duration(left)) for name, left in seconds.items()]
    form.write(["point", "time left"], rows, right=["time left"])
    form.say(f"{time_left(sum(seconds.values()) / workers, workers)} here")


def _tiled_layouts(plan: Plan) -> list[str]:
    """One line for each layout that is shorter than the depth, with the layers that it expands to."""
    from favorit.model.layout import tiled

    models = {(task.config.model.layout, task.config.model.performer, task.config.model.depth) for task in plan.tasks}
    found = {(layout, depth): tiled(layout, performer, depth) for layout, performer, depth in sorted(models)}
    return [f"layout {layout} at depth {depth}: {whole}" for (layout, depth), whole in found.items() if whole]


def status_table(form: TableForm, study: Study, options: Options, states: Sequence[State]) -> None:
    """Prints every point with status, result and published accuracy; then the main table, with means over seeds and
    folds; then totals.
    """
    references = group_references(study, options)
    heading = f"{study.name}: {describe_options(options)}"
    rows = [_state_row(state, references.get(state.group, ())) for state in states]
    _point_table(form, rows, heading, is_main=False)
    groups: Groups = {state.group: [] for state in states}
    for state in states:
        groups[state.group].append(state.result)
    results = [state.result for state in states if state.result is not None]
    if results or not form.is_text:
        form.say()
        _result_table(form, groups, references, "mean over seeds and folds")
    form.say(f"\n{_status_counts(states)}")
    explain_scale(form, study, options, list(groups))
    explain_flags(form, results)
    notes(form, study, [state.name for state in states])
    merged(form, states)


def summary(form: TableForm, report: Report) -> None:
    """Prints mean results over seeds and folds next to the published numbers; then counts and failed runs."""
    plan = report.plan
    groups: Groups = {task.group: [] for task in plan.tasks}
    for task in plan.tasks:
        groups[task.group].append(report.results.get(task.name))
    if report.results or not form.is_text:
        form.say()
        references = group_references(plan.study, plan.options)
        _result_table(form, groups, references, f"{plan.study.name}: {describe_options(plan.options)}")
    counts = f"{len(report.results)} complete, {len(report.errors)} failed, {len(report.missing)} left"
    form.say(f"\n{plan.study.name} in {report.out}: {counts}{'; rerun to resume' if report.missing else ''}")
    for name, error in report.errors.items():
        form.say(f"failed: {name}: {error}")
    explain_scale(form, plan.study, plan.options, [task.group for task in plan.tasks if task.name in report.results])
    explain_flags(form, list(report.results.values()))
    notes(form, plan.study, list(report.results))


def describe_options(options: Options) -> str:
    """The scale, seeds (if given) and protocol as text for the heading of a table."""
    seeds = [f"seeds {', '.join(map(str, options.seeds))}"] if options.seeds else []
    return "; ".join([f"scale {options.shown_scale}", *seeds, f"protocol {options.protocol}"])


def explain_scale(form: TableForm, study: Study, options: Options, groups: Iterable[str]) -> None:
    """If the scale is not the published one, prints why numbers differ from ours: images, epochs or another model."""
    if not options.is_reduced or not study.published:
        return
    form.say(f"scale {options.shown_scale}: published numbers come from another number of images or epochs")
    shown = set(groups)
    for group, differs in study.other_models(options).items():
        if group in shown:
            form.say(f"no published number for {group}: another model at this scale ({differs})")


def group_references(study: Study, options: Options) -> References:
    """The published numbers of each group. Prints one line and returns none if a published table is damaged."""
    from favorit.errors import FavoritError

    try:
        return study.group_references(options)
    except FavoritError as error:
        echo(f"published numbers are not shown: {error}", err=True)
        return {}


def explain_flags(form: TableForm, results: Sequence[dict[str, Any]]) -> None:
    """Prints one line for each flag: its meaning, and how many runs have it."""
    from favorit.published import FLAGS

    for flag, count in Counter(flag for result in results for flag in _flags([result])).items():
        runs = f"all {count} runs" if count == len(results) else f"{count} of {len(results)} runs"
        form.say(f"{flag}: {FLAGS.get(flag, 'a flag of the run')} ({runs})")


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


def _result_table(form: TableForm, groups: Groups, references: References, heading: str) -> None:
    """Prints the main table: means over the runs of each group, and the number of runs without result. Text leaves out
    groups without any result.
    """
    shown = {name: runs for name, runs in groups.items() if not form.is_text or any(run is not None for run in runs)}
    rows = [_result_row(name, runs, references.get(name, ())) for name, runs in shown.items()]
    _point_table(form, rows, heading)
    if _shared([result for results in groups.values() for result in results if result is not None]):
        form.say("s/epoch is hidden for runs that shared the machine with other workers or ran at low priority")


def _result_row(name: str, runs: Sequence[dict[str, Any] | None], references: Sequence[Reference]) -> dict[str, str]:
    from favorit.study.statistics import aggregate

    results = [result for result in runs if result is not None]
    missing = str(len(runs) - len(results)) if len(results) < len(runs) else ""
    row = {"point": name, "runs": str(len(results)), "missing": missing}
    if not results:
        return {**dict.fromkeys(RESULT_TITLES, ""), **row, **_published(references, None)}
    tested = aggregate([result["test"]["accuracy"] for result in results])
    validated = [
        result["validation"]["accuracy"]
        for result in results
        if (result.get("validation") or {}).get("accuracy") is not None
    ]
    # Times of runs that shared the machine are not comparable.
    alone = [result["train_seconds_per_epoch"] for result in results if not _shared([result])]
    return {
        **row,
        "test": f"{tested.mean:.2%}",
        "sd": "" if tested.deviation is None else f"{tested.deviation:.2%}",
        "95 % interval": ""
        if tested.low is None or tested.high is None
        else f"{max(tested.low, 0):.2%} to {min(tested.high, 1):.2%}",
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


def _point_table(form: TableForm, rows: Sequence[Mapping[str, str]], heading: str, is_main: bool = True) -> None:
    """Prints one row for each point. Leaves out empty columns, and the flags if all runs have the same ones: the lines
    below the table explain them.
    """
    titles = [title for title in rows[0] if title == "test" or any(row[title] for row in rows)]
    if len({row["flags"] for row in rows if row["test"]}) == 1 and "flags" in titles:
        titles.remove("flags")
    names = [row["point"] for row in rows]
    width = terminal_width(sys.stdout) if form.is_text else None
    sections = (
        None
        if width is None or max(map(len, names)) <= width - VALUES_WIDTH
        else _section_titles(names, width - VALUES_WIDTH)
    )
    if sections is not None:
        names = [name.removeprefix(f"{section} ") for name, section in zip(names, sections, strict=True)]
    cells = [[name, *(row[title] for title in titles[1:])] for name, row in zip(names, rows, strict=True)]
    if sections is not None:
        titles, cells = ["section", *titles], [[section, *row] for section, row in zip(sections, cells, strict=True)]
    right = [title for title in titles if title not in TEXT_COLUMNS]
    form.write(titles, cells, right=right, optional=OPTIONAL, heading=heading, section="section", is_main=is_main)


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


def notes(form: TableForm, study: Study, names: Sequence[str]) -> None:
    """Prints each remark of the study that applies to these points."""
    counts = Counter(sentence for name in names for sentence in study.flagged(name))
    for sentence, count in counts.items():
        form.say(f"note: {sentence}{'' if count == len(names) else f' ({count} of {len(names)} points)'}")


def merged(form: TableForm, points: Iterable[Task | State]) -> None:
    """Prints which points of the study are the same run."""
    from favorit.study.plan import merge_notes

    for sentence in merge_notes(points):
        form.say(f"note: {sentence}")


def time_left(seconds: float, workers: int) -> str:
    return f"about {duration(seconds)} left with {workers} worker{'s' if workers > 1 else ''}"


def duration(seconds: float | None) -> str:
    """A time in seconds, minutes or hours; empty for None."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
