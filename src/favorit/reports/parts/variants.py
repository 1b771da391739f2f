"""The table of variants: ours beside the published numbers, with the best and the Pareto-optimal rows marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from favorit.reports.contents import Column, Table
from favorit.reports.parts.glance import by_data
from favorit.reports.runs import StudyRuns, Variant
from favorit.study.statistics import aggregate
from favorit.study.study import FULL, PROTOCOLS

if TYPE_CHECKING:
    from favorit.published import Reference

# The costs of a variant, against which accuracy is Pareto-optimal or not: column -> key of the result.
TIMES = {"epoch_seconds": "train_seconds_per_epoch", "inference_seconds": "inference_seconds"}
COSTS = ("parameters", *TIMES)
BEST, PARETO = "best", "Pareto-optimal"

COLUMNS = (
    Column("variant", "variant"),
    Column("runs", "runs", is_number=True),
    Column("accuracy", "test accuracy", "{:.2%}".format, is_number=True, higher=True),
    Column("interval", "95 % interval", explain="of the mean over seeds; needs two runs"),
    Column("published", "published"),
    Column("difference", "ours - published", is_number=True, explain="in percentage points"),
    Column("parameters", "parameters", "{:,}".format, is_number=True),
    Column("epoch_seconds", "s/epoch", "{:.3g}".format, is_number=True, explain="training time of an epoch"),
    Column("inference_seconds", "inference s", "{:.3g}".format, is_number=True, explain="time over the test set"),
    Column("marks", "best or Pareto-optimal in"),
    Column("flags", "flags", explain="of our runs"),
    Column("published_flags", "published flags"),
)
MARKS_NOTE = (
    "Best: the largest mean accuracy on its data set. Pareto-optimal in a cost: no other variant is at least as "
    "accurate at a lower cost, or more accurate at the same cost. The best of several variants is selected on "
    "the test images, so its accuracy and its lead are optimistic."
)
SHARED = "Times are left out for runs that shared the machine with other workers or ran at low priority."


def variants_table(runs: StudyRuns) -> Table | None:
    """The table of variants with complete runs. Columns without any value are left out."""
    if not runs.complete:
        return None
    times, time_notes = comparable_times(runs.complete)
    rows = [{**_row(each, runs.references.get(each.name, ())), **times[each.name]} for each in runs.complete]
    marks = _marks(runs.complete, rows)
    for number, row in enumerate(rows):
        row["marks"] = _marks_text(number, marks)
    return Table(
        "variants",
        "Variants",
        [column for column in COLUMNS if any(row.get(column.key) not in (None, "") for row in rows)],
        rows,
        marks,
        runs=[[run.id for run in variant.complete] for variant in runs.complete],
        notes=[*([MARKS_NOTE] if len(rows) > 1 else []), *time_notes, *reasons(runs), *remarks(runs)],
    )


def _row(variant: Variant, references: Sequence[Reference]) -> dict[str, Any]:
    found = aggregate([run.accuracy for run in variant.complete])
    headline = [each for each in references if each.quantity.is_headline]
    known = found.low is not None and found.high is not None
    interval = f"{max(found.low or 0, 0):.2%} to {min(found.high or 0, 1):.2%}" if known else None
    return {
        "variant": variant.name,
        "runs": found.n,
        "accuracy": found.mean,
        "interval": interval,
        "published": ", ".join(f"{each.text} %" for each in headline) or None,
        "difference": ", ".join(f"{each.difference(100 * found.mean):+.2f}" for each in headline) or None,
        "parameters": variant.complete[0].result.get("parameters"),
        "flags": _words(flag for run in variant.complete for flag in run.result.get("flags") or ()),
        "published_flags": _words(flag for each in headline for flag in each.flags),
    }


def _words(words: Any) -> str:
    return " ".join(dict.fromkeys(words))


def comparable_times(variants: Sequence[Variant]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The mean times of each variant by name, and notes on those that are left out.

    Times are comparable if all runs that had the machine alone have one hardware, thread count and versions.
    """
    alone = {each.name: [run for run in each.complete if run.has_comparable_times] for each in variants}
    recorded = [run.result.get("environment") for runs in alone.values() for run in runs]
    places = {json.dumps(each, sort_keys=True) for each in recorded}
    notes = [SHARED] if any(len(alone[each.name]) < len(each.complete) for each in variants) else []
    if len(places) > 1:
        return {each.name: {} for each in variants}, [
            *notes,
            f"Times are left out: they come from {len(places)} machines, thread counts or versions.",
        ]
    return {
        name: {column: fmean(run.result[key] for run in runs) for column, key in TIMES.items()} if runs else {}
        for name, runs in alone.items()
    }, notes


def pareto(accuracies: Sequence[float], costs: Sequence[float]) -> set[int]:
    """The places that no other place beats: at least as accurate and as cheap, and better in one of both."""
    pairs = list(zip(accuracies, costs, strict=True))
    return {
        place
        for place, (accuracy, cost) in enumerate(pairs)
        if not any(a >= accuracy and c <= cost and (a, c) != (accuracy, cost) for a, c in pairs)
    }


def _marks(variants: Sequence[Variant], rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], tuple[str, ...]]:
    """Best and Pareto-optimal cells, on each data set with at least two variants."""
    numbers = {variant.name: number for number, variant in enumerate(variants)}
    marks: dict[tuple[int, str], tuple[str, ...]] = {}
    for ranked in by_data(variants).values():
        places = [numbers[variant.name] for variant in ranked]
        if len(places) < 2:
            continue
        most = max(rows[place]["accuracy"] for place in places)
        marks |= {(place, "accuracy"): (BEST,) for place in places if rows[place]["accuracy"] == most}
        for cost in COSTS:
            known = [place for place in places if rows[place].get(cost) is not None]
            front = pareto([rows[place]["accuracy"] for place in known], [rows[place][cost] for place in known])
            marks |= {(known[index], cost): (PARETO,) for index in front}
    return marks


def _marks_text(number: int, marks: Mapping[tuple[int, str], tuple[str, ...]]) -> str:
    titles = {column.key: column.title for column in COLUMNS}
    best = [BEST] if (number, "accuracy") in marks else []
    return ", ".join([*best, *(titles[cost] for cost in COSTS if (number, cost) in marks)])


def reasons(runs: StudyRuns) -> list[str]:
    """Why our numbers differ from the published ones: scale, protocol, and models that a scale replaces."""
    study, options = runs.study, runs.options
    if study is None or not study.published:
        return []
    found = []
    if options.scale != FULL:
        changes = _changes(study.scale(options.scale).changes)
        found.append(f"Ours differ from the published runs in scale ({options.scale}: {changes or 'other points'}).")
    if options.protocol != PROTOCOLS[0]:
        found.append(f"Ours differ from the published runs in protocol ({options.protocol}: {_changes(study.sound)}).")
    by_difference: dict[str, list[str]] = {}
    for group, difference in study.other_models(options).items():
        by_difference.setdefault(difference, []).append(group)
    for difference, groups in by_difference.items():
        found.append(f"No published number for {', '.join(groups)}: another model at this scale ({difference}).")
    return found


def _changes(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changes.items())


def remarks(runs: StudyRuns) -> list[str]:
    """The study's remarks on its variants, each with the number of variants that it applies to."""
    if runs.study is None:
        return []
    counts: dict[str, int] = {}
    for variant in runs.complete:
        for remark in runs.study.flagged(variant.name):
            counts[remark] = counts.get(remark, 0) + 1
    return [f"{remark} ({count} of {len(runs.complete)} variants)." for remark, count in counts.items()]
