"""A study: a question, and the points that answer it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from favorit import __version__
from favorit.config import SECTIONS, RunConfig, identify
from favorit.errors import FavoritError, unknown
from favorit.published import Reference
from favorit.study.points import PRESET, Changes, Points, check_fields, key, written
from favorit.study.references import Published, references
from favorit.study.source import Source

PROTOCOLS = ("published", "sound")

# Runs that differ in these alone repeat each other: they are named last and reported together.
REPEATS = ("seed", "data.fold")


@dataclass(frozen=True)
class Options:
    """How a study is run: by which protocol, shortened to how many epochs and images, with which seeds, and which of its points.

    `subset` is the number of training images and of test images; `only` a part of a point's name, or a pattern with * and ?.
    """

    protocol: str = "published"
    epochs: int | None = None
    subset: int | None = None
    seeds: tuple[int, ...] = ()
    only: str | None = None

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol", self.protocol, PROTOCOLS)


@dataclass(frozen=True)
class Point:
    """One run of a study. `name` shows what tells it from the others, `group` the same without what only repeats it."""

    name: str
    group: str
    changes: Changes


@dataclass(frozen=True)
class Study:
    """`base` holds for every point unless the point says otherwise; `sound` is what `--protocol sound` changes, and wins over both.

    `flags` are what a reader must know of these numbers and of published ones: sentences, each with patterns of the points it is about.
    `source` is the file that it was loaded from, which whoever trains its points imports too. `published` maps rows of published tables to
    its points.
    """

    name: str
    question: str
    base: Changes
    points: Points
    sound: Changes = field(default_factory=dict)
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source: Source | None = field(default=None, compare=False, repr=False)
    published: Sequence[Published] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name) or self.name.startswith("."):
            raise FavoritError(f"study name {self.name!r}: letters, digits, '-', '_' and '.', because it names a file")
        if not isinstance(self.points, Points):
            raise FavoritError(f"study {self.name}: points are made with product, zip or Points, not {type(self.points).__name__}")
        if not self.points:
            raise FavoritError(f"study {self.name} has no points")
        check_fields([*self.base, *self.sound])
        self._merged(())

    def named(self, options: Options) -> list[Point]:
        """The points with their names, seeds multiplied in; what is not asked for is left out."""
        merged = self._merged(options.seeds)
        names = _names(merged, self.name)
        groups = _names([{name: value for name, value in changes.items() if name not in REPEATS} for changes in merged], self.name)
        points = [Point(name, group, changes) for name, group, changes in zip(names, groups, merged, strict=True)]
        found = [point for point in points if options.only is None or matches(point.name, options.only)]
        if not found:
            raise FavoritError(f"study {self.name}: no point matches {options.only!r}; its points are named like {points[0].name!r}")
        return found

    def _merged(self, seeds: Sequence[int]) -> list[Changes]:
        """The changes of every point, base included; two alike are an error."""
        # The point's own fields first: in that order they are tried for names.
        merged: list[Changes] = [{**point, **{name: self.base[name] for name in self.base if name not in point}} for point in self.points]
        if seeds:  # instead of those it has
            without = [{name: value for name, value in changes.items() if name != "seed"} for changes in merged]
            merged = [{**changes, "seed": seed} for changes in {key(each): each for each in without}.values() for seed in seeds]
        seen: dict[str, int] = {}
        for number, changes in enumerate(merged, 1):
            if (first := seen.setdefault(key(changes), number)) != number:
                raise FavoritError(f"study {self.name}: points {first} and {number} are the same: {written(changes)}")
        return merged

    def configs(self, options: Options | None = None) -> dict[str, RunConfig]:
        """The configuration of each point by name."""
        options = options or Options()
        return {point.name: self.config(point, options) for point in self.named(options)}

    def config(self, point: Point, options: Options) -> RunConfig:
        """The configuration of a point. With fewer epochs the warm-up is shortened in proportion."""
        changes = {**point.changes, **(self.sound if options.protocol == "sound" else {})}
        try:
            config = RunConfig(**_sections(changes))
            if options.epochs is not None:
                train = config.train
                shorter = train.replace(epochs=options.epochs, warmup=train.warmup * options.epochs / train.epochs)
                config = config.replace(train=shorter)
            if options.subset is not None:
                config = config.replace(data=config.data.replace(subset=options.subset, test_subset=options.subset))
        except FavoritError as error:
            raise FavoritError(f"study {self.name}, point {point.name!r}: {error}") from None
        return config

    def meaning(self, options: Options) -> str:
        """An identifier of what is run: the same points, options and version have the same one."""
        return identify([__version__, asdict(options), dict(self.sound), [dict(changes) for changes in self._merged(())]])

    def references(self, point: Point) -> list[Reference]:
        """The published numbers of a point."""
        return references(self.published, point.changes)

    def group_references(self, options: Options) -> dict[str, list[Reference]]:
        """The published numbers of each group of points that has some. Seeds and folds of a variant share them."""
        if not self.published:
            return {}
        groups = {point.group: point for point in self.named(replace(options, seeds=(), only=None))}
        found = {group: self.references(point) for group, point in groups.items()}
        return {group: own for group, own in found.items() if own}

    def flagged(self, name: str) -> Iterator[str]:
        """What must be known of the numbers of a point."""
        return (sentence for sentence, patterns in self.flags.items() if any(matches(name, pattern) for pattern in patterns))


def matches(name: str, pattern: str) -> bool:
    """Whether a name is meant: by a pattern with * and ?, or by any part of it."""
    return fnmatchcase(name, pattern) if set("*?") & set(pattern) else pattern in name


def _names(points: Sequence[Changes], alone: str) -> list[str]:
    """Names that show the fields that tell the points apart, and no more; a point with none of them has the name `alone`."""
    fields = sorted(dict.fromkeys(name for changes in points for name in changes), key=lambda name: name in REPEATS)
    columns = {name: [repr(changes[name]) if name in changes else None for changes in points] for name in fields}

    def told_apart(names: Sequence[str]) -> int:
        return len(set(zip(*(columns[name] for name in names), strict=True))) if names else 1

    kept: list[str] = []
    for name in fields:
        if told_apart([*kept, name]) > told_apart(kept):
            kept.append(name)
    # What an earlier field told apart, later ones together may tell apart too; but that a field is not there tells a reader nothing.
    for name in reversed(kept):
        ways = (kept, [other for other in kept if None not in columns[other]])
        others = [[other for other in way if other != name] for way in ways]
        if name != "data.name" and list(map(told_apart, others)) == list(map(told_apart, ways)):
            kept = others[0]
    # A section's name is what it is called: data=cifar10 and not name=cifar10.
    short = {name: name.removesuffix(".name").rpartition(".")[2] for name in kept}
    shown = {name: text if list(short.values()).count(text) == 1 else name for name, text in short.items()}
    return [" ".join(f"{shown[name]}={changes[name]}" for name in kept if name in changes) or alone for changes in points]


def _sections(changes: Changes) -> dict[str, Any]:
    """{"model.dim": 64, "seed": 1} -> {"model": {"dim": 64}, ..., "seed": 1}, a preset put under the fields it stands for."""
    values: dict[str, Any] = {section: {} for section in SECTIONS}
    if PRESET in changes:
        from favorit.model.presets import PRESETS, preset

        preset(changes[PRESET])
        values["model"].update(PRESETS[changes[PRESET]])
    for name, value in changes.items():
        section, dot, rest = name.partition(".")
        if name == PRESET:
            continue
        if dot:
            values[section][rest] = value
        else:
            values[name] = value
    return values
