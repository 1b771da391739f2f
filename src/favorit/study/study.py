"""A study: a question and the points (configurations) that answer it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from favorit import __version__
from favorit.config import RunConfig, identify
from favorit.errors import FavoritError, check_positive, unknown
from favorit.fields import nest
from favorit.published import Reference
from favorit.study.points import PRESET, Changes, Points, check_fields, key, written
from favorit.study.references import Published, references

PROTOCOLS = ("published", "sound")
FULL = "published"  # the scale of a study that is not reduced

# Runs that differ only in these fields are repetitions. The fields come last in names, and tables show the mean.
REPEATS = ("seed", "data.fold")


@dataclass(frozen=True)
class Options:
    """How a study is run: protocol, epochs, images, seeds, points and scale.

    `subset` is the number of training images and the number of test images. `only` is a part of a point's name, a
    pattern with * or ?, or a tuple of these. Points that match none of them are left out. `skip_unreadable` skips image
    files that cannot be read.
    """

    protocol: str = "published"
    epochs: int | None = None
    subset: int | None = None
    seeds: tuple[int, ...] = ()
    only: str | tuple[str, ...] | None = None
    scale: str = FULL
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol", self.protocol, PROTOCOLS)
        given = {name: getattr(self, name) for name in ("epochs", "subset")}
        check_positive(**{name: value for name, value in given.items() if value is not None})
        if not isinstance(self.seeds, tuple | list) or not all(isinstance(seed, int) for seed in self.seeds):
            raise FavoritError(f"seeds={self.seeds!r} is not valid: a tuple of integers, such as (0, 1, 2)")
        if not isinstance(self.only, str | tuple | None):
            raise FavoritError(f"only={self.only!r} is not valid: a part of a point's name, or a tuple of these")

    @property
    def patterns(self) -> tuple[str, ...]:
        """`only` as a tuple; empty means all points."""
        if self.only is None:
            return ()
        return (self.only,) if isinstance(self.only, str) else self.only

    @property
    def is_reduced(self) -> bool:
        """True if scale, epochs or subset differ from the published study."""
        return (self.scale, self.epochs, self.subset) != (FULL, None, None)

    @property
    def shown_scale(self) -> str:
        """The scale with the changes of --epochs and --subset, as text for tables."""
        shortened = [f"{self.epochs} epochs"] if self.epochs is not None else []
        shortened += [f"{self.subset} images"] if self.subset is not None else []
        return ", ".join([self.scale, *shortened])


@dataclass(frozen=True)
class Scale:
    """A named reduction of a study: other points, and changes that override base, points and protocol."""

    changes: Changes = field(default_factory=dict)
    points: Points | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.changes, Mapping):
            raise FavoritError(f"changes={self.changes!r} is not valid: a dictionary such as {{'train.epochs': 2}}")


# Scales of every study. A study's own scales override them.
SCALES = {FULL: Scale(), "smoke": Scale({"train.epochs": 1, "data.subset": 256, "data.test_subset": 256})}


@dataclass(frozen=True)
class Point:
    """One run of a study. `name` has the fields that distinguish the point, `group` these fields without REPEATS."""

    name: str
    group: str
    changes: Changes

    def matches(self, pattern: str) -> bool:
        """True if the pattern matches the point's name or group. `data=...` also matches if the names do not show the
        data set because all points share it.
        """
        data = f"data={self.changes.get('data.name')} "
        names = {self.name, self.group, *(data + each for each in (self.name, self.group) if not each.startswith(data))}
        return any(matches(name, pattern) for name in names)


@dataclass(frozen=True)
class Study:
    """A study: `base` applies to every point unless the point overrides it; `sound` are the changes of `--protocol
    sound`, which override both.

    `flags` are remarks that tables print: {remark: patterns of the points that it applies to}. `scales` are named
    reductions in addition to `published` (the whole study) and `smoke` (256 images, one epoch). The field `published`
    maps rows of published tables to points.
    """

    name: str
    question: str
    base: Changes
    points: Points
    sound: Changes = field(default_factory=dict)
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    published: Sequence[Published] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w.-]+", self.name) or self.name.startswith("."):
            raise FavoritError(
                f"study name {self.name!r} is not valid: use letters, digits, '-', '_' and '.'; it names a file"
            )
        if not isinstance(self.points, Points):
            raise FavoritError(
                f"study {self.name}: points must be Points (from product, zipped or Points), not "
                f"{type(self.points).__name__}"
            )
        for part in ("base", "sound", "flags", "scales"):
            if not isinstance(value := getattr(self, part), Mapping):
                raise FavoritError(f"study {self.name}: {part} must be a dictionary, not {type(value).__name__}")
        for name, scale in self.scales.items():
            if not isinstance(scale, Scale):
                raise FavoritError(
                    f"study {self.name}: scale {name!r} must be a Scale, such as Scale({{'train.epochs': 2}})"
                )
        if not self.points:
            raise FavoritError(f"study {self.name} has no points")
        check_fields([*self.base, *self.sound, *(name for scale in self.scales.values() for name in scale.changes)])
        for scale in self.scales.values():
            self._merged((), scale)
        self._merged(())

    def scale(self, name: str) -> Scale:
        """The reduction with this name."""
        known = {**SCALES, **self.scales}
        if name not in known:
            raise unknown(f"scale of study {self.name}", name, known)
        return known[name]

    def named(self, options: Options) -> list[Point]:
        """The selected points with their names, one for each seed."""
        merged = self._merged(options.seeds, self.scale(options.scale))
        names = _names(merged, self.base, self.name)
        variants = [{name: value for name, value in changes.items() if name not in REPEATS} for changes in merged]
        groups = _names(variants, self.base, self.name)
        points = [
            Point(name, group, {**self.base, **changes})
            for name, group, changes in zip(names, groups, merged, strict=True)
        ]
        for pattern in options.patterns:
            if not any(point.matches(pattern) for point in points):
                raise FavoritError(
                    f"study {self.name}: no point matches {pattern!r}; a point is named like {points[0].name!r}"
                )
        return [point for point in points if not options.patterns or any(map(point.matches, options.patterns))]

    def _merged(self, seeds: Sequence[int], scale: Scale = SCALES[FULL]) -> list[Changes]:
        """The changes of every point of a scale, once for each seed. Two equal points are an error."""
        merged: list[Changes] = list(self.points if scale.points is None else scale.points)
        if seeds:  # they replace the points' own seeds
            without = [{name: value for name, value in changes.items() if name != "seed"} for changes in merged]
            merged = [
                {**changes, "seed": seed}
                for changes in {self._key(each): each for each in without}.values()
                for seed in seeds
            ]
        seen: dict[str, int] = {}
        for number, changes in enumerate(merged, 1):
            if (first := seen.setdefault(self._key(changes), number)) != number:
                raise FavoritError(f"study {self.name}: points {first} and {number} are the same: {written(changes)}")
        return merged

    def _key(self, changes: Changes) -> str:
        return key({**self.base, **changes})

    def configs(self, options: Options | None = None) -> dict[str, RunConfig]:
        """The configuration of each point by name."""
        options = options or Options()
        return {point.name: self.config(point, options) for point in self.named(options)}

    def config(self, point: Point, options: Options) -> RunConfig:
        """The configuration of a point. If epochs are reduced, warm-up is reduced in proportion."""
        changes = {**point.changes, **(self.sound if options.protocol == "sound" else {})}
        reduced = dict(self.scale(options.scale).changes)
        if options.epochs is not None:
            reduced["train.epochs"] = options.epochs
        if options.subset is not None:
            reduced |= {"data.subset": options.subset, "data.test_subset": options.subset}
        if options.scale != FULL:
            reduced["scale"] = options.scale
        if options.skip_unreadable:
            reduced["data.skip_unreadable"] = True
        try:
            whole = RunConfig(**_sections(changes)).train
            if "train.warmup" not in reduced and whole.warmup:
                reduced["train.warmup"] = whole.warmup * reduced.get("train.epochs", whole.epochs) / whole.epochs
            config = RunConfig(**_sections({**changes, **reduced}))
        except FavoritError as error:
            raise FavoritError(f"study {self.name}, point {point.name!r}: {error}") from None
        return config

    def digest(self, options: Options) -> str:
        """A digest of the study's configurations, the options and the version of favorit."""
        chosen = asdict(replace(options, only=options.patterns))
        # Leaves out the seeds, which are in the options: building thousands of configurations takes a second.
        variants = self.configs(replace(options, seeds=(), only=None))
        return identify([__version__, chosen, {name: config.changed() for name, config in variants.items()}])

    def references(self, point: Point) -> list[Reference]:
        """The published numbers of a point."""
        return references(self.published, point.changes)

    def group_references(self, options: Options) -> dict[str, list[Reference]]:
        """The published numbers of each group that has any; seeds and folds share them.

        Groups whose model at this scale differs from the published one (see `other_models`) have none.
        """
        others = self.other_models(options)
        return {group: own for group, (_, own) in self._matched(options).items() if group not in others}

    def other_models(self, options: Options) -> dict[str, str]:
        """The groups whose model at this scale differs from the published one, with the difference, such as `dim 256
        instead of 960`.
        """
        if options.scale == FULL:
            return {}
        whole = {(each.table, each.row): point for point, own in self._matched(Options()).values() for each in own}
        found: dict[str, str] = {}
        for group, (point, own) in self._matched(options).items():
            ours = self.config(point, options).model.model_dump()
            theirs = self.config(whole[own[0].table, own[0].row], Options()).model.model_dump()
            if differs := [
                f"{name} {ours[name]} instead of {theirs[name]}" for name in ours if ours[name] != theirs[name]
            ]:
                found[group] = ", ".join(differs)
        return found

    def _matched(self, options: Options) -> dict[str, tuple[Point, list[Reference]]]:
        """For each group with published numbers: one of its points, and the numbers."""
        if not self.published:
            return {}
        points = {point.group: point for point in self.named(replace(options, seeds=(), only=None))}
        found = {group: (point, self.references(point)) for group, point in points.items()}
        return {group: pair for group, pair in found.items() if pair[1]}

    def flagged(self, name: str) -> Iterator[str]:
        """The remarks in `flags` that apply to a point."""
        return (
            sentence for sentence, patterns in self.flags.items() if any(matches(name, pattern) for pattern in patterns)
        )


def matches(name: str, pattern: str) -> bool:
    """True if the name contains the pattern, or matches it if it has * or ?."""
    return fnmatchcase(name, pattern) if set("*?") & set(pattern) else pattern in name


def _names(points: Sequence[Changes], base: Changes, default: str) -> list[str]:
    """A name for each point, made of the fields that distinguish the points. A point that sets none of them is named
    `default`.

    A name has a field only if its point sets it. Otherwise the base's value applies.
    """
    fields = sorted(dict.fromkeys(name for changes in points for name in changes), key=lambda name: name in REPEATS)
    whole = [{**base, **changes} for changes in points]
    columns = {name: [repr(changes[name]) if name in changes else None for changes in whole] for name in fields}

    def count_distinct(names: Sequence[str]) -> int:
        return len(set(zip(*(columns[name] for name in names), strict=True))) if names else 1

    kept: list[str] = []
    for name in fields:
        if count_distinct([*kept, name]) > count_distinct(kept):
            kept.append(name)
    # Drops a field if the names distinguish as many points without it. The test runs twice: with all kept fields, and
    # with only those that every point sets, because a reader overlooks a missing field.
    for name in reversed(kept):
        before = (kept, [other for other in kept if None not in columns[other]])
        after = [[other for other in names if other != name] for names in before]
        if name != "data.name" and list(map(count_distinct, after)) == list(map(count_distinct, before)):
            kept = after[0]
    # Short names are the last part of the field; data.name is shown as data (data=cifar10).
    short = {name: name.removesuffix(".name").rpartition(".")[2] for name in kept}
    shown = {name: text if list(short.values()).count(text) == 1 else name for name, text in short.items()}
    return [
        " ".join(f"{shown[name]}={changes[name]}" for name in kept if name in changes) or default for changes in points
    ]


def _sections(changes: Changes) -> dict[str, Any]:
    """{"model.dim": 64, "seed": 1} -> {"model": {"dim": 64}, ..., "seed": 1}; a preset sets the other model fields."""
    values = nest({name: value for name, value in changes.items() if name != PRESET})
    if PRESET in changes:
        from favorit.model.presets import PRESETS, current_name

        values["model"] = {**PRESETS[current_name(changes[PRESET])], **values["model"]}
    return values
