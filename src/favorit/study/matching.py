"""Matches runs to the points of studies by their configuration, without the seed and the fold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from favorit.config import RunConfig
from favorit.data.datasets import CARDS, describe_dataset
from favorit.errors import FavoritError
from favorit.study.study import FULL, PROTOCOLS, SCALES, Options, Study
from favorit.training.identity import resolve, run_id

# The image size, channels and classes of a run.
Sizes = tuple[tuple[int, int], int, int]

# Groups and configurations of a study at a scale and protocol. The study is kept, so that its id is not reused.
_configs: dict[tuple[int, str, str], tuple[Study, dict[str, RunConfig]]] = {}
_groups: dict[tuple[int, str, str, Sizes | None], dict[str, str]] = {}


class Match(NamedTuple):
    """The place of a run: study, scale and protocol, and the group of its point."""

    study: str
    scale: str
    protocol: str
    group: str


def repeats_key(config: RunConfig) -> str:
    """Text that is equal for runs that differ in seed and fold only. The name stands for the data."""
    return run_id(without_repeats(config), config.data.name)


def without_repeats(config: RunConfig) -> RunConfig:
    """The configuration with the default seed and fold."""
    return config.replace(seed=0, data=config.data.replace(fold=None))


def match(config: RunConfig, studies: Iterable[Study]) -> list[Match]:
    """The points of these studies that a resolved configuration trains.

    A configuration with a component that is not registered here matches none.
    """
    scale, model = config.scale or FULL, config.model
    try:
        key = repeats_key(config)
    except FavoritError:
        return []
    sizes = model.image_size, model.channels, model.classes
    return [
        Match(study.name, scale, protocol, group)
        for study in studies
        for protocol in (PROTOCOLS if study.sound else PROTOCOLS[:1])  # without changes, both protocols are the same
        for known in (None, sizes)
        if (group := _groups_by_key(study, scale, protocol, known).get(key)) is not None
    ]


def _groups_by_key(study: Study, scale: str, protocol: str, sizes: Sizes | None) -> dict[str, str]:
    """{key: group} of the points of a study; empty if the study does not have the scale.

    Without sizes, these are the points on published data sets. With sizes, they are the points on data of the user's
    own, which are not read: such a point matches if the sizes are those of the run.
    """
    place = (id(study), scale, protocol, sizes)
    if place not in _groups:
        found: dict[str, str] = {}
        for group, config in _known_configs(study, scale, protocol).items():
            if (config.data.name in CARDS) is (sizes is None):
                found.setdefault(repeats_key(_resolved(config, sizes)), group)
        _groups[place] = found
    return _groups[place]


def _resolved(config: RunConfig, sizes: Sizes | None) -> RunConfig:
    if sizes is None:
        return resolve(config, describe_dataset(config.data.name))
    size, channels, classes = sizes
    return config.replace(model=config.model.replace(image_size=size, channels=channels, classes=classes))


def _known_configs(study: Study, scale: str, protocol: str) -> dict[str, RunConfig]:
    """The configuration of each group."""
    place = (id(study), scale, protocol)
    if place not in _configs:
        found: dict[str, RunConfig] = {}
        if scale in {**SCALES, **study.scales}:
            options = Options(scale=scale, protocol=protocol)
            points = {point.group: point for point in study.named(options)}
            found = {group: study.config(point, options) for group, point in points.items()}
        _configs[place] = study, found
    return _configs[place][1]
