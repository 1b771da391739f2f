"""Collects the runs of a folder by study: each run is matched to the point of a study that it trains.

A run that was trained by `favorit study` records its study and point. An older run matches a point of a built-in study
if both have the same resolved configuration, except for the seed and the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.config import RunConfig
from favorit.errors import FavoritError
from favorit.fields import DEFAULTS, flatten
from favorit.reports.style import Style, styles
from favorit.study import Options, Study, load_study
from favorit.study.load import built_in
from favorit.study.matching import match
from favorit.study.points import PRESET
from favorit.study.study import FULL, PROTOCOLS, REPEATS
from favorit.training.find import stored_runs
from favorit.training.records import had_machine_alone, status
from favorit.training.stored import StoredRun

if TYPE_CHECKING:
    import pandas

OTHER = "other runs"


@dataclass(frozen=True)
class ReportRun:
    """One run with what a report reads of it. `fields` is the configuration as {dotted field: value}."""

    id: str
    path: Path
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

    `study` is None for runs that belong to no known study.
    """

    study: Study | None
    options: Options
    variants: tuple[Variant, ...]
    name: str

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
    def missing(self) -> tuple[Variant, ...]:
        """The variants without a complete run."""
        return tuple(variant for variant in self.variants if not variant.complete)

    def command(self, *names: str) -> str:
        """The command that trains these points of the study, or all of its missing points."""
        parts = ["favorit study run", self.name]
        if self.options.scale != FULL:
            parts.append(f"--scale {self.options.scale}")
        if self.options.protocol != PROTOCOLS[0]:
            parts.append(f"--protocol {self.options.protocol}")
        return " ".join([*parts, *(f'--only "{name}"' for name in names)])

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
    """All runs of a folder, by study, and those that cannot be read."""

    folder: Path
    studies: tuple[StudyRuns, ...]
    damaged: tuple[Damaged, ...] = field(default=())

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


def collect(folder: str | Path, studies: Iterable[str | Path] = (), scale: str | None = None) -> Collection:
    """The runs of a folder by study, scale and protocol.

    `studies` are names of built-in studies or files; none means those that have runs, and then the runs of no study. A
    named study without runs is included with all its points missing, at `scale`.
    """
    wanted = {study.name: study for study in map(load_study, studies)}
    known = wanted or {name: load_study(name) for name in built_in()}
    found: dict[tuple[str, str, str], dict[str, list[ReportRun]]] = {}
    others: dict[str, list[ReportRun]] = {}
    damaged = []
    for stored in stored_runs(folder):
        try:
            run = _read(stored)
        except FavoritError as error:
            damaged.append(Damaged(stored.id, str(error)))
            continue
        if scale is not None and (run.config.scale or FULL) != scale:
            continue
        matches = match(run.config, known.values())
        for each in matches:
            found.setdefault((each.study, each.scale, each.protocol), {}).setdefault(each.group, []).append(run)
        if not matches and not wanted:
            others.setdefault(_describe(run), []).append(run)
    for name in wanted:
        if not any(key[0] == name for key in found):
            found[name, scale or FULL, PROTOCOLS[0]] = {}
    order = list(known)
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1] != FULL, key[1:]))
    sections = [
        _study_runs(known[name], scale, protocol, found[name, scale, protocol]) for name, scale, protocol in keys
    ]
    if others:
        variants = tuple(Variant(name, {}, runs[0].config, tuple(runs)) for name, runs in others.items())
        sections.append(StudyRuns(None, Options(), variants, OTHER))
    return Collection(Path(folder), tuple(sections), tuple(damaged))


def _study_runs(study: Study, scale: str, protocol: str, runs: Mapping[str, Sequence[ReportRun]]) -> StudyRuns:
    options = Options(scale=scale, protocol=protocol)
    points = {point.group: point for point in study.named(options)}
    variants = tuple(
        Variant(group, point.changes, study.config(point, options), tuple(runs.get(group, ())))
        for group, point in points.items()
    )
    return StudyRuns(study, options, variants, study.name)


def _describe(run: ReportRun) -> str:
    """A name for the runs that belong to no study: data set, layers and position."""
    position = run.fields["model.position"]
    return f"data={run.fields['data.name']} layers={run.layers} position={position}"


def _read(stored: StoredRun) -> ReportRun:
    saved, result = stored.config(), stored.result()
    config = RunConfig(**saved["config"])
    return ReportRun(
        id=stored.id,
        path=stored.path,
        status=status(stored, result),
        layers=saved.get("layers", ""),
        config=config,
        fields=flatten(config.model_dump(mode="json")),
        result=result or {},
        epochs=stored.epochs(),
        classes=saved["data"]["classes"],
        error=str((result or {}).get("error") or stored.error() or ""),
    )
