"""Names for groups of runs that no study lists: runs of one name differ in seed and fold only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from favorit.config import RunConfig
from favorit.fields import flatten
from favorit.study.matching import without_repeats


def distinct_names(runs: Sequence[tuple[str, RunConfig]]) -> list[str]:
    """The name of each run, given (name, configuration). Runs with one name but different configurations get the fields
    in which they differ: `relu train.epochs=2` and `relu train.epochs=5`.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    fields = [flatten(without_repeats(config).model_dump(mode="json")) for _, config in runs]
    for (name, _), own in zip(runs, fields, strict=True):
        by_name.setdefault(name, []).append(own)
    differing = {
        name: [field for field in group[0] if any(own[field] != group[0][field] for own in group)]
        for name, group in by_name.items()
    }
    return [
        " ".join([name, *(f"{field}={own[field]}" for field in differing[name])])
        for (name, _), own in zip(runs, fields, strict=True)
    ]
