"""Builds a report: collects runs, computes every part, and assembles the document."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from favorit import __version__
from favorit.reports.collect import Collection, ReportRun, StudyRuns, collect
from favorit.reports.contents import Document, Figure, Gap, RunDetails, Section, Table
from favorit.reports.parts import GENERAL, PARTS


def build_report(folder: str | Path = "runs", studies: Iterable[str | Path] = (), scale: str | None = None) -> Document:
    """The report of the runs in a folder: of these studies, or of everything that is there."""
    found = collect(folder, studies, scale)
    return Document(
        title=" and ".join(dict.fromkeys(runs.name for runs in found.studies)) or "no runs",
        sections=[_section(runs) for runs in found.studies],
        runs=_details(found),
        facts={"favorit": __version__, "runs": str(sum(1 for _ in found.runs)), "folder": str(folder)},
    )


def _section(runs: StudyRuns) -> Section:
    parts = [GENERAL, *([PARTS[runs.name]] if runs.name in PARTS else [])]
    answers = [question.answer(runs) for each in parts for question in each.questions]
    tables = [definition.build(runs) for each in parts for definition in each.tables]
    figures = [definition.build(runs) for each in parts for definition in each.figures]
    gaps = [part for part in (*tables, *figures) if isinstance(part, Gap)]
    gaps += [Gap(variant.name, "no complete run", runs.command(variant.name)) for variant in runs.missing]
    return Section(
        name=f"{runs.name}-{runs.scale}-{runs.options.protocol}",
        title=f"{runs.name}, scale {runs.scale}",
        question="" if runs.study is None else runs.study.question,
        glance="",
        answers=answers,
        tables=[part for part in tables if isinstance(part, Table)],
        figures=[part for part in figures if isinstance(part, Figure)],
        gaps=gaps,
    )


def _details(found: Collection) -> list[RunDetails]:
    details = [
        _run_details(run, variant.name, runs.command(variant.name))
        for runs in found.studies
        for variant in runs.variants
        for run in variant.runs
    ]
    return details + [RunDetails(each.id, "", "damaged", {}, {}, "", each.error) for each in found.damaged]


def _run_details(run: ReportRun, name: str, command: str) -> RunDetails:
    result: dict[str, Any] = {}
    if run.is_complete:
        result = {"accuracy": run.accuracy, "epochs": run.result.get("epochs"), "flags": run.result.get("flags")}
    changed = run.config.changed()
    return RunDetails(run.id, name, run.status, changed, result, command, run.error)
