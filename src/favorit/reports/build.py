"""Builds a report: collects runs, computes every part, and assembles the document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from favorit import __version__
from favorit.errors import FavoritError
from favorit.published import FLAGS
from favorit.reports.collect import OTHER, Listen, collect
from favorit.reports.contents import Document, Figure, Gap, RunDetails, Section, Table
from favorit.reports.parts import GENERAL, PARTS
from favorit.reports.parts.glance import glance
from favorit.reports.runs import Collection, ReportRun, StudyRuns, Variant
from favorit.study import Study
from favorit.study.load import built_in
from favorit.terminal import one_line

MOST_NAMED = 3  # variants that a gap names
LONGEST = 80  # characters of the name of a section, which is also the name of a folder


def build_report(
    folder: str | Path = "runs",
    studies: Iterable[str | Path | Study] = (),
    scale: str | None = None,
    listen: Listen = lambda done, total: None,
) -> Document:
    """The report of the runs in a folder: of these studies, or of everything that is there.

    `listen` is called with the number of runs read and the number of all runs.
    """
    studies = list(studies)
    found = collect(folder, studies, scale, listen)
    if not found.total:
        raise _empty(folder, studies)
    names = _section_names(found.studies)
    return Document(
        title=" and ".join(dict.fromkeys(runs.name for runs in found.studies)) or "no runs",
        sections=[_section(runs, name) for runs, name in zip(found.studies, names, strict=True)],
        runs=_details(found),
        facts={"favorit": __version__, "runs": str(sum(1 for _ in found.runs)), "folder": one_line(str(folder))},
    )


def _empty(folder: str | Path, studies: Sequence[str | Path | Study]) -> FavoritError:
    """The error for a folder without runs, which says what to run first."""
    named = next((str(each) for each in studies if not isinstance(each, Study)), "quickstart")
    state = "has no runs" if Path(folder).is_dir() else "does not exist"
    return FavoritError(
        f"{folder} {state}: train some first, for example with 'favorit study run {named} --out {folder}'"
    )


def _section_names(studies: Sequence[StudyRuns]) -> list[str]:
    """A name for each section that is valid in HTML and as the name of a folder, whatever the studies are called."""
    names: list[str] = []
    for runs in studies:
        text = f"{runs.name}-{runs.scale}-{runs.options.protocol}" if runs.study else f"{runs.name}-{runs.scale}-runs"
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:LONGEST]
        same = (number for number in count(2) if f"{name}-{number}" not in names)
        names.append(f"{name}-{next(same)}" if name in names else name)
    return names


def _section(runs: StudyRuns, name: str) -> Section:
    parts = [GENERAL, *([PARTS[runs.name]] if runs.study is not None and runs.name in PARTS else [])]
    answers = [question.answer(runs) for each in parts for question in each.questions]
    tables = [definition.build(runs) for each in parts for definition in each.tables]
    figures = [definition.build(runs) for each in parts for definition in each.figures]
    gaps = [part for part in (*tables, *figures) if isinstance(part, Gap)]
    kept = [part for part in tables if isinstance(part, Table)]
    return Section(
        name=name,
        title=_title(runs),
        question=_question(runs),
        glance=glance(runs),
        source=_source(runs),
        answers=answers,
        tables=kept,
        figures=[part for part in figures if isinstance(part, Figure)],
        gaps=grouped([*gaps, *_missing(runs)]),
        flags=_flags(kept),
    )


def _title(runs: StudyRuns) -> str:
    if runs.study is None and runs.name == OTHER:
        return f"Runs of no study, scale {runs.scale}"
    protocol = "" if runs.study is None else f", protocol {runs.options.protocol}"
    return f"{runs.name}, scale {one_line(runs.scale)}{protocol}"


def _question(runs: StudyRuns) -> str:
    if runs.study is not None:
        return runs.study.question
    if runs.name == OTHER:
        return ""
    if runs.name in built_in():
        return (
            f"These runs recorded the study {runs.name}, but no point of it has their configuration, for example "
            "because of --epochs, --subset or another version of favorit."
        )
    return f"These runs recorded the study {runs.name}. Give its file to see its question and its missing points."


def _source(runs: StudyRuns) -> str:
    """The publications of a study's published numbers, with their hardware."""
    if runs.study is None:
        return ""
    found = [each for own in runs.references.values() for each in own]
    sources = dict.fromkeys(f"{each.source}; hardware: {each.hardware}" for each in found)
    return f"Published numbers: {'. '.join(sources)}." if sources else ""


def _flags(tables: Sequence[Table]) -> dict[str, str]:
    """The meaning of each flag in the tables."""
    words = {word for table in tables for texts in table.texts() for text in texts for word in text.split()}
    return {flag: meaning for flag, meaning in FLAGS.items() if flag in words}


def _missing(runs: StudyRuns) -> list[Gap]:
    """One gap for all points of a study without a complete run; of other runs, one for each variant."""
    if not runs.missing:
        return []
    if runs.study is None:
        return [Gap(each.name, "no complete run", runs.command(each.name)) for each in runs.missing]
    what = f"{len(runs.missing)} of {len(runs.variants)} variants"
    names = ", ".join(each.name for each in runs.missing[:MOST_NAMED])
    more = len(runs.missing) - MOST_NAMED
    return [Gap(what, f"no complete run: {names}{f' and {more} more' if more > 0 else ''}", runs.command())]


def grouped(gaps: Iterable[Gap]) -> list[Gap]:
    """One gap for each command and reason; gaps with one command follow each other."""
    whats: dict[str, dict[str, list[str]]] = {}
    for gap in gaps:
        whats.setdefault(gap.command, {}).setdefault(gap.why, []).append(gap.what)
    return [Gap("; ".join(parts), why, command) for command, own in whats.items() for why, parts in own.items()]


def _details(found: Collection) -> list[RunDetails]:
    details: dict[str, RunDetails] = {}
    for runs in found.studies:
        for variant in runs.variants:
            for run in variant.runs:
                details.setdefault(run.id, _run_details(run, variant, runs))
    return [*details.values(), *(RunDetails(each.id, "", "damaged", {}, {}, "", each.error) for each in found.damaged)]


def _run_details(run: ReportRun, variant: Variant, runs: StudyRuns) -> RunDetails:
    result: dict[str, Any] = {}
    if run.is_complete:
        result = {"accuracy": run.accuracy, "epochs": run.result.get("epochs"), "flags": run.result.get("flags")}
    changed = run.config.changed()
    name = run.name.name or variant.name
    return RunDetails(run.id, name, run.status, changed, result, runs.repeat(variant, run), run.error)
