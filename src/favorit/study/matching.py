"""Matches runs to the points of studies by their configuration, without the seed and the fold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from favorit.config import RunConfig
from favorit.data.datasets import describe_dataset
from favorit.study.study import FULL, PROTOCOLS, SCALES, Options, Study
from favorit.training.run import resolve, run_id

# The groups of a study at a scale and protocol. A study is kept with them, so that its id is not reused.
_known: dict[tuple[int, str, str], tuple[Study, dict[str, str]]] = {}


class Match(NamedTuple):
    """The place of a run: study, scale and protocol, and the group of its point."""

    study: str
    scale: str
    protocol: str
    group: str


def repeats_key(config: RunConfig) -> str:
    """Text that is equal for runs that differ in seed and fold only. The name stands for the data."""
    alike = config.replace(seed=0, data=config.data.replace(fold=None))
    return run_id(alike, config.data.name)


def match(config: RunConfig, studies: Iterable[Study]) -> list[Match]:
    """The points of these studies that a resolved configuration trains."""
    scale = config.scale or FULL
    key = repeats_key(config)
    return [
        Match(study.name, scale, protocol, group)
        for study in studies
        for protocol in PROTOCOLS
        if (group := _groups(study, scale, protocol).get(key)) is not None
    ]


def _groups(study: Study, scale: str, protocol: str) -> dict[str, str]:
    """{key: group} of the points of a study; empty if the study does not have the scale."""
    place = (id(study), scale, protocol)
    if place not in _known:
        _known[place] = study, _computed_groups(study, scale, protocol)
    return _known[place][1]


def _computed_groups(study: Study, scale: str, protocol: str) -> dict[str, str]:
    if scale not in {**SCALES, **study.scales}:
        return {}
    options = Options(scale=scale, protocol=protocol)
    points = {point.group: point for point in study.named(options)}
    found: dict[str, str] = {}
    for group, point in points.items():
        config = study.config(point, options)
        found.setdefault(repeats_key(resolve(config, describe_dataset(config.data.name))), group)
    return found
