"""The runs that a report reads, by study and variant."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.config import RunConfig
from favorit.fields import DEFAULTS
from favorit.reports.style import Style, styles
from favorit.study import Options, Study
from favorit.study.points import PRESET
from favorit.study.study import FULL, PROTOCOLS, REPEATS
from favorit.training.names import RunName
from favorit.training.records import had_machine_alone

if TYPE_CHECKING:
    import pandas

    from favorit.published import Reference


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
