"""The tables of a study as JSON data: the plan, the status, the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from favorit.cli.study_tables import References, group_references
from favorit.study.plan import merge_notes

if TYPE_CHECKING:
    from favorit.study import Options, Study
    from favorit.study.plan import Plan
    from favorit.study.runner import Report, State


def plan_json(plan: Plan, states: Sequence[State], seconds: Mapping[str, float], workers: int) -> dict[str, Any]:
    """The options and every point, with the estimated seconds left if they were estimated."""
    return {
        **_options(plan.study, plan.options),
        "workers": workers,
        "points": [{**_point(state), "seconds_left": seconds.get(state.name)} for state in states],
        "without_data": plan.absent,
        "notes": [*_notes(plan.study, [state.name for state in states]), *merge_notes(states)],
    }


def status_json(study: Study, options: Options, states: Sequence[State]) -> dict[str, Any]:
    """The options, every point, and means over seeds and folds."""
    references = group_references(study, options)
    points = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for state in states:
        result = state.result or {}
        known = {"flags": result.get("flags", []), "best_test": result.get("best_test")}
        points.append({**_point(state), **known, "published": _published(references, state.group)})
        if state.result is not None:
            groups.setdefault(state.group, []).append(state.result)
    return {
        **_options(study, options),
        "points": points,
        "groups": _groups(groups, references),
        "notes": [*_notes(study, [state.name for state in states]), *merge_notes(states)],
    }


def summary_json(report: Report) -> dict[str, Any]:
    """The options, the points that are complete, failed or left, and means over seeds and folds."""
    plan = report.plan
    groups: dict[str, list[dict[str, Any]]] = {}
    for task in plan.tasks:
        if task.name in report.results:
            groups.setdefault(task.group, []).append(report.results[task.name])
    return {
        **_options(plan.study, plan.options),
        "complete": list(report.results),
        "failed": report.errors,
        "left": list(report.missing),
        "groups": _groups(groups, group_references(plan.study, plan.options)),
        "notes": [*_notes(plan.study, list(report.results)), *merge_notes(plan.tasks)],
    }


def _options(study: Study, options: Options) -> dict[str, Any]:
    return {
        "study": study.name,
        "scale": options.shown_scale,
        "seeds": list(options.seeds),
        "protocol": options.protocol,
    }


def _point(state: State) -> dict[str, Any]:
    return {name: value for name, value in vars(state).items() if name != "result"}


def _groups(groups: Mapping[str, Sequence[dict[str, Any]]], references: References) -> list[dict[str, Any]]:
    from favorit.study.statistics import aggregate

    return [
        {
            "group": name,
            **vars(aggregate([each["test"]["accuracy"] for each in results])),
            "published": _published(references, name),
        }
        for name, results in groups.items()
    ]


def _published(references: References, group: str) -> list[float | tuple[float, float]]:
    return [each.value for each in references.get(group, ()) if each.quantity.is_headline]


def _notes(study: Study, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(sentence for name in names for sentence in study.flagged(name)))
