"""Collects the runs of a folder by study: each run is matched to the point of a study that it trains.

A run matches a point of a study if both have the same resolved configuration, except for the seed and the fold. Runs
of a study that is not known here, because its file is not given, are grouped by the names that they recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from favorit.config import RunConfig
from favorit.errors import FavoritError, unknown
from favorit.fields import flatten
from favorit.reports.grouping import distinct_names
from favorit.reports.runs import Collection, Damaged, ReportRun, StudyRuns, Variant
from favorit.study import Options, Study, load_study
from favorit.study.load import built_in
from favorit.study.matching import match
from favorit.study.study import FULL, PROTOCOLS
from favorit.terminal import one_line
from favorit.training.find import stored_runs
from favorit.training.names import RunName, indexed_names, name_of
from favorit.training.records import status
from favorit.training.stored import StoredRun

if TYPE_CHECKING:
    pass

OTHER = "other runs"

Listen = Callable[[int, int], None]


def collect(
    folder: str | Path,
    studies: Iterable[str | Path | Study] = (),
    scale: str | None = None,
    listen: Listen = lambda done, total: None,
) -> Collection:
    """The runs of a folder by study, scale and protocol.

    `studies` are studies, names of built-in studies, files, or names that runs recorded; none means those that have
    runs, and then the runs of no study. A named study without runs is included with all its points missing, at `scale`.
    """
    runs, damaged = _read_all(folder, listen)
    if scale is not None:
        runs = _at_scale(runs, scale, folder)
    wanted, recorded = _wanted(studies, {run.name.study for run in runs})
    known = wanted or ({} if recorded else {name: (load_study(name), name) for name in built_in()})
    found: dict[tuple[str, str, str], dict[str, list[ReportRun]]] = {}
    others: dict[tuple[str, str], list[ReportRun]] = {}
    is_selected = bool(wanted or recorded)
    for run in runs:
        own = run.name.study
        # Without a selection, runs of a study of the user's own are shown in its section only.
        is_own = not is_selected and own not in ("", *known)
        matches = [] if is_own else match(run.config, [study for study, _ in known.values()])
        for each in matches:
            found.setdefault((each.study, each.scale, each.protocol), {}).setdefault(each.group, []).append(run)
        if not matches and (not is_selected or own in recorded or own in wanted):
            others.setdefault((own, run.config.scale or FULL), []).append(run)
    for name in wanted:
        if not any(key[0] == name for key in [*found, *others]):
            found[name, scale or FULL, PROTOCOLS[0]] = {}
    order = list(known)
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1] != FULL, key[1:]))
    sections = [
        _study_runs(*known[name], scale, protocol, found[name, scale, protocol]) for name, scale, protocol in keys
    ]
    # Runs of no study come last.
    sections += [_other_runs(*key, others[key]) for key in sorted(others, key=lambda key: (not key[0], key))]
    return Collection(Path(folder), tuple(sections), tuple(damaged), len(runs) + len(damaged))


def _read_all(folder: str | Path, listen: Listen) -> tuple[list[ReportRun], list[Damaged]]:
    runs, damaged, indexed = [], [], indexed_names(folder)
    stored = list(stored_runs(folder))
    for number, each in enumerate(stored):
        try:
            runs.append(_read(each, indexed))
        except FavoritError as error:
            damaged.append(Damaged(one_line(each.id), one_line(str(error))))
        listen(number + 1, len(stored))
    return runs, damaged


def _at_scale(runs: Sequence[ReportRun], scale: str, folder: str | Path) -> list[ReportRun]:
    kept = [run for run in runs if (run.config.scale or FULL) == scale]
    if runs and not kept:
        raise unknown(f"scale of the runs in {folder}", scale, {run.config.scale or FULL for run in runs})
    return kept


def _wanted(
    studies: Iterable[str | Path | Study], recorded: Iterable[str]
) -> tuple[dict[str, tuple[Study, str]], set[str]]:
    """The studies to report, each with its name or file, and the names of those that are only recorded in runs."""
    wanted: dict[str, tuple[Study, str]] = {}
    names: set[str] = set()
    for each in studies:
        if isinstance(each, Study):
            wanted[each.name] = each, each.name
        elif str(each) in recorded and str(each) not in built_in():
            names.add(str(each))
        elif isinstance(each, Path) or str(each).endswith(".py"):
            study = load_study(each)
            wanted[study.name] = study, str(each)
        elif str(each) in built_in():
            wanted[str(each)] = load_study(each), str(each)
        else:
            known = {*built_in(), *(name for name in recorded if name)}
            raise unknown("study (or the path of a .py file with STUDY = ...)", str(each), known)
    return wanted, names


def _study_runs(
    study: Study, place: str, scale: str, protocol: str, runs: Mapping[str, Sequence[ReportRun]]
) -> StudyRuns:
    options = Options(scale=scale, protocol=protocol)
    points = {point.group: point for point in study.named(options)}
    variants = tuple(
        Variant(group, point.changes, study.config(point, options), tuple(runs.get(group, ())))
        for group, point in points.items()
    )
    return StudyRuns(study, options, variants, study.name, place)


def _other_runs(study: str, scale: str, runs: Sequence[ReportRun]) -> StudyRuns:
    """The runs that recorded a study which is not known, or none, grouped by their names without seed and fold."""
    groups: dict[str, list[ReportRun]] = {}
    names = distinct_names([(run.name.variant, run.config) for run in runs])
    for name, run in zip(names, runs, strict=True):
        groups.setdefault(name, []).append(run)
    variants = tuple(Variant(name, {}, each[0].config, tuple(each)) for name, each in groups.items())
    return StudyRuns(None, Options(scale=scale), variants, study or OTHER)


def _read(stored: StoredRun, indexed: Mapping[str, RunName]) -> ReportRun:
    saved, result = stored.config(), stored.result()
    config = RunConfig(**saved["config"])
    return ReportRun(
        id=one_line(stored.id),
        path=stored.path,
        name=RunName(*map(one_line, name_of(stored.id, saved, indexed))),
        status=status(stored, result),
        layers=one_line(saved.get("layers") or ""),
        config=config,
        fields=flatten(config.model_dump(mode="json")),
        result=result or {},
        epochs=stored.epochs(),
        classes=[one_line(name) for name in saved["data"]["classes"]],
        error=one_line((result or {}).get("error") or stored.error() or ""),
    )
