"""Which published numbers belong to a run.

A run does not know its study. It belongs to the point of a built-in study that has the same model, the same data set
and, of its recipe, the same values of the fields by which the study maps published rows to points (`train.lr` of a
sweep). Seeds, folds and everything else of the recipe may differ: `differs` says what does, because the published
number is that of the whole recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from favorit import published
from favorit.config import DataConfig, RunConfig, TrainConfig
from favorit.errors import FavoritError
from favorit.published import Reference
from favorit.study.load import built_in, load_study
from favorit.study.references import agrees, mapped_rows
from favorit.study.study import Options, Study

# Fields that differ between repetitions, or that say how a run is measured.
IGNORED = {"data.fold", "data.folds", "train.watch", "train.test_batch_size"}


@dataclass(frozen=True)
class PublishedAccuracy:
    """The published accuracies of a run: `name` is its study and point, `differs` the fields of its recipe that are not
    the study's.

    Where several points match, `name` lists them and there are no references. `problem` says why a table could not be
    read.
    """

    name: str = ""
    references: tuple[Reference, ...] = ()
    differs: tuple[str, ...] = ()
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON data."""
        values = [
            {"table": each.table, "row": each.row, "value": each.value, "place": each.place} for each in self.references
        ]
        return {"point": self.name, "values": values, "differs": list(self.differs), "problem": self.problem}


def published_accuracy(config: RunConfig) -> PublishedAccuracy:
    """The published accuracies of the run with this resolved configuration."""
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
    """The name of the matching point, the published numbers of a row of it, and its configuration."""
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
                    if _meaning(own, recipe, config) == _meaning(config, recipe, config):
                        yield f"{study.name}: {point.group}", published.read(table.table).references(number), own


def _meaning(config: RunConfig, recipe: Iterable[str], resolved: RunConfig) -> str:
    """An identifier of the model, the data set and these fields of the recipe; sizes that the data decide are those of
    `resolved`.
    """
    from favorit.training.run import run_id

    sizes = {name: getattr(resolved.model, name) for name in ("image_size", "channels", "classes")}
    kept: dict[str, dict[str, Any]] = {"data": {}, "train": {}}
    for field in recipe:
        section, _, name = field.partition(".")
        kept[section][name] = getattr(getattr(config, section), name)
    meant = RunConfig(
        model=config.model.replace(**sizes), data=DataConfig(**kept["data"]), train=TrainConfig(**kept["train"])
    )
    return run_id(meant, config.data.name)


def _differences(own: RunConfig, config: RunConfig) -> list[str]:
    """`train.epochs 5 instead of 50`, for the fields of recipe and data."""
    found = []
    for section in ("train", "data"):
        ours: Mapping[str, Any] = getattr(config, section).model_dump(mode="json")
        theirs: Mapping[str, Any] = getattr(own, section).model_dump(mode="json")
        for name, value in ours.items():
            if value != theirs[name] and f"{section}.{name}" not in IGNORED:
                found.append(f"{section}.{name} {value} instead of {theirs[name]}")
    return found
