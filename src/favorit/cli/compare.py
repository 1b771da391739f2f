"""`favorit compare`: compare variants, or all variants of a study, on the same test images."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from favorit.cli.progress import delayed_bar
from favorit.cli.shared import TableForm, with_fields
from favorit.cli.study import StudyRuns
from favorit.cli.study_tables import describe_options
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.study.lookup import PublishedAccuracy
    from favorit.study.multiple import Comparisons
    from favorit.study.statistics import Comparison, Interval, Variant

# Columns to drop on a narrow terminal, the first one first.
OPTIONAL = ("flags", "p", "confounded by")

MAX_NAMED = 3  # number of variants without runs that are named


@with_fields
def compare(
    variants: Annotated[
        list[str],
        typer.Argument(
            help="Variants: a run or its folder, the start of an ID or name, or several separated by commas "
            "(one for each seed). Or one study: its name, or a Python file with STUDY = ...",
            metavar="STUDY|VARIANT...",
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(help="Compare all variants with this one, instead of all pairs.", metavar="VARIANT"),
    ] = None,
    *,
    chosen: StudyRuns,
    form: TableForm,
) -> None:
    """Compare variants image by image on the same test images: two, several, or all of a study.

    Two variants: accuracies, their difference with a 95 % interval, McNemar's test, and confounders. Runs that match a
    point of a built-in study are shown with its published accuracy. The table has a row for each variant.

    More variants, or a study: a row for each pair, with p-values corrected for multiple comparisons (Holm). The p-value
    is McNemar's for variants of one run, else that of a bootstrap over images and seeds. --scale, --seeds, --only and
    the other options of a study select its runs.

    Examples: [bold]favorit compare 0123 fedc[/bold],
    [bold]favorit compare runs/A0,runs/A1,runs/A2 runs/B0,runs/B1,runs/B2[/bold],
    [bold]favorit compare "layout=softmax" "layout=relu(m=64)" "layout=uniform"[/bold],
    [bold]favorit compare hybrids --scale small --seeds 0,1,2 --runs results/runs --against layout=softmax[/bold]
    """
    from favorit.errors import FavoritError
    from favorit.study.load import built_in

    known = built_in()
    if len(variants) == 1 and (variants[0] in known or variants[0].endswith(".py")):
        _compare_study(form, variants[0], against, chosen)
        return
    if replace(chosen, out=StudyRuns().out) != StudyRuns():
        raise FavoritError(
            "--scale, --seeds, --only, --epochs, --subset, --protocol and --data-dir choose the runs of a study: give "
            "a study, or leave them out"
        )
    if len(variants) == 1:
        near = difflib.get_close_matches(variants[0], known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise FavoritError(
            f"{variants[0]} is one variant: {hint}give another one to compare it with, or a study ({', '.join(known)})"
        )
    if len(variants) > 2:
        _compare_variants(form, variants, against, chosen.out)
    elif against is not None:
        raise FavoritError(f"--against {against} is valid for a study or at least three variants: leave it out")
    else:
        _compare_two(form, _runs(variants[0]), _runs(variants[1]), chosen.out)


def _compare_study(form: TableForm, name: str, against: str | None, chosen: StudyRuns) -> None:
    from favorit.study.load import load_study
    from favorit.study.multiple import study_variants

    study, options = load_study(name), chosen.options()
    variants, left_out = study_variants(study, chosen.out, options, chosen.data_dir)
    heading = f"{study.name}: {describe_options(options)}"
    _write_pairs(form, _all_pairs(form, variants, against), heading, left_out)


def _compare_variants(form: TableForm, given: Sequence[str], against: str | None, folder: Path) -> None:
    from favorit.study.multiple import named_variants

    variants = named_variants([_runs(each) for each in given], folder)
    _write_pairs(form, _all_pairs(form, variants, against), f"{len(variants)} variants", [])


def _all_pairs(form: TableForm, variants: dict[str, Variant], against: str | None) -> Comparisons:
    from favorit.study.multiple import compare_all

    with delayed_bar(form.open_console(), "comparing") as listen:
        return compare_all(variants, against, listen=listen)


def _write_pairs(form: TableForm, found: Comparisons, heading: str, left_out: Sequence[str]) -> None:
    """Prints the variants, best first, then the pairs, then what the columns mean."""
    from favorit.study.multiple import BOOTSTRAP, MCNEMAR

    if form.as_json:
        echo(json.dumps({**_pairs_json(found), "left_out": list(left_out)}))
        return
    ranked = [
        [each.name, str(each.accuracy.n), f"{each.accuracy.mean:.2%}", _interval(each.accuracy), " ".join(each.flags)]
        for each in found.variants
    ]
    titles = ["variant", "runs", "test", "95 % interval", "flags"]
    right = ["runs", "test"]
    form.write(titles, ranked, right=right, heading=heading, optional=OPTIONAL, is_main=False)
    form.say()
    titles = ["variant", "against", "difference", "95 % interval", "p", "corrected p", "verdict", "confounded by"]
    rows = [
        [
            pair.a,
            pair.b,
            f"{100 * pair.difference.mean:+.2f}",
            f"{100 * pair.difference.low:+.2f} to {100 * pair.difference.high:+.2f}",
            f"{pair.p:.2g}",
            f"{pair.corrected:.2g}",
            pair.verdict,
            "; ".join(pair.confounded),
        ]
        for pair in found.pairs
    ]
    if not any(pair.confounded for pair in found.pairs):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    section = "against" if found.against else "variant"
    form.write(titles, rows, right=["difference", "p", "corrected p"], optional=OPTIONAL, section=section)
    tests = {pair.test for pair in found.pairs}
    words = {MCNEMAR: "McNemar's exact test (one run each)", BOOTSTRAP: "paired bootstrap over images and seeds"}
    form.say(
        f"\ndifference: points of test accuracy. p: {', or '.join(words[test] for test in sorted(tests))}; corrected "
        f"with Holm's method for {len(found.pairs)} comparison{'s' if len(found.pairs) > 1 else ''}; undecided: "
        "corrected p of at least 0.05. The intervals are not corrected."
    )
    if MCNEMAR in tests:
        form.say("variants with one run are compared on these images only: other seeds may differ")
    if left_out:
        more = f" and {len(left_out) - MAX_NAMED} more" if len(left_out) > MAX_NAMED else ""
        form.say(f"left out, because no run is complete: {', '.join(left_out[:MAX_NAMED])}{more}")


def _pairs_json(found: Comparisons) -> dict[str, Any]:
    pairs = [{**asdict(pair), "verdict": pair.verdict} for pair in found.pairs]
    return {"variants": [asdict(each) for each in found.variants], "pairs": pairs, "against": found.against}


def _compare_two(form: TableForm, a: Sequence[str], b: Sequence[str], folder: Path) -> None:
    from favorit.study.statistics import compare as compare_runs

    found = compare_runs(a, b, folder=folder)
    if form.as_json:
        echo(json.dumps(_as_json(found)))
        return
    console = form.open_console()
    sides = [(found.a, found.accuracy_a, found.published_a), (found.b, found.accuracy_b, found.published_b)]
    columns: dict[str, list[str]] = {}
    if any(published.references for _, _, published in sides):
        columns["published"] = [
            ", ".join(f"{reference.text}%" for reference in published.references) for _, _, published in sides
        ]
        columns["ours - published"] = [
            ", ".join(f"{reference.difference(100 * accuracy.mean):+.2f}" for reference in published.references)
            for _, accuracy, published in sides
        ]
    if found.flags_a or found.flags_b:
        columns["flags"] = [" ".join(flags) for flags in (found.flags_a, found.flags_b)]
    rows = []
    for number, (name, accuracy, _) in enumerate(sides):
        values = [column[number] for column in columns.values()]
        rows.append([name, str(accuracy.n), f"{accuracy.mean:.2%}", _interval(accuracy), *values])
    form.write(["variant", "runs", "test", "95 % interval", *columns], rows, right=["runs", "test"])
    console.print(found.sentence, markup=False, soft_wrap=True)
    if found.p is not None:
        console.print(f"McNemar: p {f'= {found.p:.3g}' if found.p else '< 1e-300'}", soft_wrap=True)
    if min(found.accuracy_a.n, found.accuracy_b.n) == 1:
        console.print("a variant has only one run: the interval covers images, not other seeds", soft_wrap=True)
    if found.confounded:
        console.print(f"confounded by {'; '.join(found.confounded)}", markup=False, soft_wrap=True)
    for line in _published_lines(found, sides):
        console.print(line, markup=False, soft_wrap=True)


def _published_lines(found: Comparison, sides: list[tuple[str, Interval, PublishedAccuracy]]) -> list[str]:
    """Lines with the published difference, then lines that qualify the published accuracies."""
    lines = []
    for a, b, low, high in found.published_differences:
        points = f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}"
        lines.append(
            f"published difference: {points} points ({a.table} rows {a.row} and {b.row}, {a.place}; {a.source})"
        )
    for name, _, published in sides:
        if published.problem:
            lines.append(f"published numbers are not shown: {published.problem}")
        elif published.name and not published.references:
            lines.append(f"{name}: no published accuracy is shown because several points match: {published.name}")
        elif published.differs:
            lines.append(f"{name} differs from the published recipe: {', '.join(published.differs)}")
    return list(dict.fromkeys(lines))


def _as_json(found: Comparison) -> dict[str, object]:
    differences = [
        {"table": a.table, "rows": [a.row, b.row], "low": low, "high": high}
        for a, b, low, high in found.published_differences
    ]
    published = {
        "published_a": found.published_a.as_dict(),
        "published_b": found.published_b.as_dict(),
        "published_differences": differences,
    }
    return {**asdict(found), **published, "sentence": found.sentence}


def _runs(text: str) -> list[str]:
    """The runs of a variant, separated by commas outside parentheses."""
    depth = 0
    parts = [""]
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _interval(accuracy: Interval) -> str:
    """The interval as text, clipped to [0, 1]: a symmetric interval over few seeds may exceed this range."""
    return (
        ""
        if accuracy.low is None or accuracy.high is None
        else f"{max(accuracy.low, 0):.2%} to {min(accuracy.high, 1):.2%}"
    )
