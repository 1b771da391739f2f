"""`favorit study status NAME --published`: every published number of a study next to ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from favorit.cli.study_tables import describe_options, explain_scale, notes

if TYPE_CHECKING:
    from favorit.cli.shared import TableForm
    from favorit.published import Reference
    from favorit.study import Options, Study
    from favorit.study.pairs import Pair
    from favorit.study.references import Unmatched

TITLES = ("point", "quantity", "published", "ours", "diff", "ratio", "runs", "hardware", "flags", "place")
# Columns to drop on a narrow terminal, the first one first.
OPTIONAL = ("hardware", "place", "flags", "runs")


def published_table(
    form: TableForm, study: Study, options: Options, pairs: Sequence[Pair], unmatched: Sequence[Unmatched]
) -> None:
    """Prints the numbers of each point; then sources, hardware and the meaning of flags; then rows without a point."""
    if pairs:
        form.write(
            TITLES,
            [_row(pair) for pair in pairs],
            right=TITLES[2:7],
            optional=OPTIONAL,
            heading=f"{study.name}: {describe_options(options)}",
            section="point",
        )
        form.say()
        _sources(form, [pair.reference for pair in pairs])
    else:
        form.say(f"study {study.name}: no published numbers for these points")
    groups = list(dict.fromkeys(pair.group for pair in pairs))
    explain_scale(form, study, options, groups)
    notes(form, study, groups)
    for table, reason in dict.fromkeys((each.table, each.reason) for each in unmatched):
        rows = [str(each.row) for each in unmatched if (each.table, each.reason) == (table, reason)]
        form.say(f"no point for {table}, row {', '.join(rows)}: {reason}")


def as_json(pairs: Sequence[Pair], unmatched: Sequence[Unmatched]) -> dict[str, Any]:
    """`published_table` as JSON data."""
    missing = [{"table": each.table, "row": each.row, "reason": each.reason} for each in unmatched]
    return {"published": [pair.as_dict() for pair in pairs], "unmatched": missing}


def _row(pair: Pair) -> list[str]:
    reference, quantity = pair.reference, pair.reference.quantity
    return [
        pair.group,
        f"{quantity.name}, {quantity.unit}" if quantity.unit else quantity.name,
        reference.text,
        "" if pair.ours is None else format(pair.ours, ".2f" if quantity.unit == "%" else ".4g"),
        "" if pair.difference is None else format(pair.difference, "+.2f" if quantity.unit == "%" else "+.3g"),
        "" if pair.ratio is None else f"{pair.ratio:.2f}x",
        str(pair.runs) if pair.runs else "",
        reference.hardware,
        " ".join(reference.flags),
        reference.place,
    ]


def _sources(form: TableForm, references: Sequence[Reference]) -> None:
    from favorit.published import FLAGS

    for table, source, hardware in dict.fromkeys((each.table, each.source, each.hardware) for each in references):
        form.say(f"{table}: {source}; hardware: {hardware}")
    for flag in dict.fromkeys(flag for each in references for flag in each.flags):
        form.say(f"{flag}: {FLAGS[flag]}")
    for table, row, note in dict.fromkeys((each.table, each.row, each.note) for each in references if each.note):
        form.say(f"{table} row {row}: {note}")
    if any(each.quantity.is_time for each in references):
        form.say("times: from runs that did not share the machine, compared as a ratio because the hardware differs")
