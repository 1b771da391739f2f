"""Collects the runs of a folder by study: each run is matched to the point of a study that it trains.

A run matches a point of a study if both have the same resolved configuration, except for the seed and the fold. Runs
of a study that is not known here, because its file is not given, are grouped by the names that they recorded.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.config import RunConfig
from favorit.errors import FavoritError, unknown
from favorit.fields import DEFAULTS, flatten
from favorit.reports.grouping import distinct_names
from favorit.reports.style import Style, styles
from favorit.study import Options, Study, load_study
from favorit.study.load import built_in
from favorit.study.matching import match
from favorit.study.points import PRESET
from favorit.study.study import FULL, PROTOCOLS, REPEATS
from favorit.terminal import one_line
from favorit.training.find import stored_runs
from favorit.training.names import RunName, indexed_names, name_of
from favorit.training.records import had_machine_alone, status
from favorit.training.stored import StoredRun

if TYPE_CHECKING:
    import pandas

    from favorit.published import Reference

OTHER = "other runs"

Listen = Callable[[int, int], None]


@dataclass(frozen=True)
class ReportRun:
    """One run with what a report reads of it. `fields` is the configuration as {dotted field: value}.

    Control characters in names and messages are written as escapes.
    """

    id: str
    path: Path
    name: RunName
    status: str
    layers: str
    config: RunConfig
    fields: Mapping[str, Any]
    result: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    classes: Sequence[str]
    error: str = ""

    @property
    def is_complete(self) -> bool:
        return self.status == "complete"

    @property
    def has_comparable_times(self) -> bool:
        """True if the run did not share the machine, so that its times can be compared."""
        return had_machine_alone(self.result.get("environment"))

    @property
    def accuracy(self) -> float:
        """The test accuracy of a complete run."""
        return float(self.result["test"]["accuracy"])


@dataclass(frozen=True)
class Damaged:
    """A run that cannot be read, and why."""

    id: str
    error: str


@dataclass(frozen=True)
class Variant:
    """The runs of one point of a study, which differ in seed and fold only. `changes` are the point's fields."""

    name: str
    changes: Mapping[str, Any]
    config: RunConfig
    runs: tuple[ReportRun, ...]

    @cached_property
    def complete(self) -> tuple[ReportRun, ...]:
        return tuple(run for run in self.runs if run.is_complete)


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study at one scale and protocol, in the order of its points; points without runs are included.

    `study` is None for runs that belong to no known study. `place` is the study's name or file, for commands.
    """

    study: Study | None
    options: Options
    variants: tuple[Variant, ...]
    name: str
    place: str = ""

    @property
    def scale(self) -> str:
        return self.options.scale

    @cached_property
    def complete(self) -> tuple[Variant, ...]:
        """The variants with complete runs."""
        return tuple(variant for variant in self.variants if variant.complete)

    @cached_property
    def styles(self) -> dict[str, Style]:
        """The label, color and shape of each variant, the same in every figure."""
        return styles({variant.name: variant.config for variant in self.variants})

    @cached_property
    def references(self) -> dict[str, list[Reference]]:
        """The published numbers of each variant that has any at this scale."""
        return {} if self.study is None else self.study.group_references(self.options)

    @cached_property
    def missing(self) -> tuple[Variant, ...]:
        """The variants without a complete run."""
        return tuple(variant for variant in self.variants if not variant.complete)

    def command(self, *names: str, options: str = "") -> str:
        """The command that trains these points of the study, or all of its missing points.

        Of runs of no known study, only those with a configuration on disk can be trained again.
        """
        if self.study is None:
            runs = [variant.runs[0] for variant in self.variants if variant.name in names and variant.runs]
            return " && ".join(f"favorit train --config {shlex.quote(str(run.path))}" for run in runs)
        parts = ["favorit study run", shlex.quote(self.place or self.name)]
        if self.options.scale != FULL:
            parts.append(f"--scale {self.options.scale}")
        if self.options.protocol != PROTOCOLS[0]:
            parts.append(f"--protocol {self.options.protocol}")
        return " ".join([*parts, *(f"--only {shlex.quote(name)}" for name in names), *([options] if options else [])])

    def repeat(self, variant: Variant, run: ReportRun) -> str:
        """The command that trains a run again."""
        if self.study is None:
            return f"favorit train --config {shlex.quote(str(run.path))} --out retrained"
        return self.command(variant.name, options=f"--seeds {run.config.seed}")

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """One row for each complete run: variant, fields of the point, accuracy, and times if they are comparable."""
        import pandas

        return pandas.DataFrame(
            [_row(variant, run) for variant in self.complete for run in variant.complete],
        )

    @cached_property
    def epochs(self) -> pandas.DataFrame:
        """One row for each epoch of each complete run: variant, run, seed, epoch (from 1), seconds and the records."""
        import pandas

        return pandas.DataFrame(
            [
                {"variant": variant.name, "run": run.id, "seed": run.fields["seed"], **each}
                for variant in self.complete
                for run in variant.complete
                for each in _epochs(run)
            ]
        )


@dataclass(frozen=True)
class Collection:
    """All runs of a folder, by study, and those that cannot be read. `total` counts the runs of the folder, also those
    of other studies.
    """

    folder: Path
    studies: tuple[StudyRuns, ...]
    damaged: tuple[Damaged, ...]
    total: int

    @property
    def runs(self) -> Iterator[ReportRun]:
        """Every readable run."""
        return (run for each in self.studies for variant in each.variants for run in variant.runs)


def _row(variant: Variant, run: ReportRun) -> dict[str, Any]:
    result, alone = run.result, run.has_comparable_times
    test = result["test"]
    batch = result.get("inference_seconds_per_batch") or [None]
    # The point's own fields: a point without Performers sets no performer, although its configuration has a default.
    fields = {name: variant.changes.get(name) for name in (*DEFAULTS, PRESET)} if variant.changes else run.fields
    return {
        **fields,
        **{name: run.fields[name] for name in ("data.name", *REPEATS)},
        "variant": variant.name,
        "run": run.id,
        "layers": run.layers,
        "accuracy": test["accuracy"],
        "loss": test.get("loss"),
        "train_accuracy": result.get("train_accuracy"),
        "validation_accuracy": (result.get("validation") or {}).get("accuracy"),
        "plain_accuracy": (result.get("plain_test") or {}).get("accuracy"),
        "best_accuracy": (result.get("best_test") or {}).get("accuracy"),
        "epochs": result.get("epochs"),
        "parameters": result.get("parameters"),
        "flops": result.get("flops"),
        "seconds_per_epoch": result.get("train_seconds_per_epoch") if alone else None,
        "inference_seconds": result.get("inference_seconds") if alone else None,
        "batch_seconds": batch[0] if alone else None,
        "flags": " ".join(result.get("flags") or []),
    }


def _epochs(run: ReportRun) -> Iterator[dict[str, Any]]:
    seconds = 0.0
    for record in run.epochs:
        seconds += record.get("train_seconds") or 0.0
        yield {**record, "epoch": record["epoch"] + 1, "seconds": seconds if run.has_comparable_times else None}


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
