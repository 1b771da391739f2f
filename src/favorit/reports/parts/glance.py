"""The result of a section in one or two sentences for each data set, made from the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from favorit.reports.differences import has_seeds, lead, mean_accuracy
from favorit.reports.runs import StudyRuns, Variant
from favorit.reports.style import Style, is_baseline


def glance(runs: StudyRuns) -> str:
    """The most accurate variant on each data set, and its lead over the baseline with its interval."""
    if not runs.complete:
        return "No complete run yet."
    return " ".join(_sentences(data, variants, runs.styles) for data, variants in by_data(runs.complete).items())


def by_data(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """The variants on each data set, the most accurate first."""
    found: dict[str, list[Variant]] = {}
    for variant in sorted(variants, key=_accuracy, reverse=True):
        found.setdefault(variant.config.data.name, []).append(variant)
    return found


def _accuracy(variant: Variant) -> float:
    return mean_accuracy(variant.complete)


def _sentences(data: str, ranked: Sequence[Variant], styles: dict[str, Style]) -> str:
    """The sentences for one data set, given its variants, the most accurate first."""
    best, *others = ranked
    name = _label(best, styles, data)
    count = len(best.complete)
    shown = f"{_accuracy(best):.1%} ({count} run{'s' if count > 1 else ''})"
    if not others:
        return f"On {data}, {name} reaches a test accuracy of {shown}; there is no other variant to compare it with."
    first = f"On {data}, {name} is the most accurate of {len(ranked)} variants: {shown}."
    baseline = next((each for each in others if is_baseline(each.config)), None)
    if is_baseline(best.config) or baseline is None:
        other, role = others[0], "next"
        first = first.replace(f"{name} is", f"the baseline {name} is") if is_baseline(best.config) else first
    else:
        other, role = baseline, "baseline"
    return f"{first} {_lead(best, other, f'{role}, {_label(other, styles, data)},')}"


def _label(variant: Variant, styles: dict[str, Style], data: str) -> str:
    """The label of a variant without the data set, which the sentence names."""
    return styles[variant.name].label.removeprefix(f"{data} ")


def _lead(best: Variant, other: Variant, name: str) -> str:
    found = lead([best], [other], (best.name, other.name))
    if found is None:
        return f"Its lead over the {name} has no interval: there are no predictions of both on the same test images."
    verdict = (
        "the 95 % interval excludes 0." if found.is_decided else "undecided, because the 95 % interval contains 0."
    )
    seeds = "" if has_seeds(best, other) else " With one run of a side, the interval does not cover other seeds."
    return f"Its lead over the {name} is {found.points}: {verdict}{seeds}"
