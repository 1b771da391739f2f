"""Finds the published accuracies of a run.

A run does not record its study. It matches a point of a built-in study if both have the same model, the same data set
and the same distinguishing recipe fields. These are the fields that the study uses to map published rows to points,
such as `train.lr` in a sweep. Seeds, folds and other recipe fields may differ. `differs` lists the recipe fields that
differ, because the published number holds for the whole recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from favorit import published
from favorit.config import DataConfig, RunConfig, TrainConfig
from favorit.errors import FavoritError
from favorit.fields import get_field, nest
from favorit.published import Reference
from favorit.study.load import built_in, load_study
from favorit.study.references import agrees, mapped_rows
from favorit.study.study import Options, Study

# `differs` leaves out fields that differ between repetitions or only affect how a run is measured.
IGNORED = {"data.fold", "data.folds", "data.skip_unreadable", "train.watch", "train.test_batch_size"}


@dataclass(frozen=True)
class PublishedAccuracy:
    """The published accuracies of a run: `name` is its study and point, `differs` the recipe fields that differ from
    the study's.

    If several points match, `name` lists them and there are no references. `problem` is the error of a table that could
    not be read.
    """

    name: str = ""
    references: tuple[Reference, ...] = ()
    differs: tuple[str, ...] = ()
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The accuracies as JSON data."""
        values = [
            {"table": each.table, "row": each.row, "value": each.value, "place": each.place} for each in self.references
        ]
        return {"point": self.name, "values": values, "differs": list(self.differs), "problem": self.problem}


def published_accuracy(config: RunConfig) -> PublishedAccuracy:
    """The published accuracies of the run with this resolved configuration."""
    from favorit.training.identity import run_id

    try:
        run_id(config, "")
    except FavoritError:  # a component of the user's own, which no published run has
        return PublishedAccuracy()
    try:
        found = [match for name in built_in() for match in _matches(load_study(name), config)]
    except FavoritError as error:
        return PublishedAccuracy(problem=str(error))
    names = list(dict.fromkeys(name for name, _, _ in found))
    if len(names) != 1:
        return PublishedAccuracy(" and ".join(names))
    references = tuple(reference for _, own, _ in found for reference in own if reference.quantity.is_headline)
    return PublishedAccuracy(names[0], references, tuple(_differences(found[0][2], config)))


def _matches(study: Study, config: RunConfig) -> Iterable[tuple[str, list[Reference], RunConfig]]:
    """For each matching point and published row: the point's name, the row's numbers, and the point's configuration."""
    if not study.published:
        return
    options = Options()
    points = {point.group: point for point in study.named(options)}
    for table in study.published:
        for number, fields in mapped_rows(table):
            if isinstance(fields, str) or fields.get("data.name") != config.data.name:
                continue
            recipe = [name for name in fields if name.startswith(("train.", "data."))]
            for point in points.values():
                if agrees(fields, point.changes):
                    own = study.config(point, options)
                    if _digest(own, recipe, config) == _digest(config, recipe, config):
                        yield f"{study.name}: {point.group}", published.read(table.table).references(number), own


def _digest(config: RunConfig, recipe: Iterable[str], resolved: RunConfig) -> str:
    """A digest of the model, the data set and these recipe fields. Image size, channels and classes come from
    `resolved`.
    """
    from favorit.training.identity import run_id

    sizes = {name: getattr(resolved.model, name) for name in ("image_size", "channels", "classes")}
    kept = nest({name: get_field(config, name) for name in recipe})
    meant = RunConfig(
        model=config.model.replace(**sizes), data=DataConfig(**kept["data"]), train=TrainConfig(**kept["train"])
    )
    return run_id(meant, config.data.name)


def _differences(published: RunConfig, run: RunConfig) -> list[str]:
    """The recipe and data fields that differ, such as `train.epochs 5 instead of 50`."""
    found = []
    for section in ("train", "data"):
        ours: Mapping[str, Any] = getattr(run, section).model_dump(mode="json")
        theirs: Mapping[str, Any] = getattr(published, section).model_dump(mode="json")
        for name, value in ours.items():
            if value != theirs[name] and f"{section}.{name}" not in IGNORED:
                found.append(f"{section}.{name} {value} instead of {theirs[name]}")
    return found
