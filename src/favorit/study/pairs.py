"""Pairs of a published number and the same quantity of our runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from favorit.published import Reference
from favorit.published.quantities import Epochs, Result
from favorit.training.records import had_machine_alone


@dataclass(frozen=True)
class Pair:
    """A published number of a group, and `ours`: the mean over `runs` runs, or None if no run has the quantity."""

    group: str
    reference: Reference
    ours: float | None
    runs: int

    @property
    def difference(self) -> float | None:
        """ours - published, or the distance to a published range; None for times, because the hardware differs."""
        if self.ours is None or self.reference.quantity.is_time:
            return None
        return self.reference.difference(self.ours)

    @property
    def ratio(self) -> float | None:
        """ours / published for times; None for other quantities."""
        return self.reference.ratio(self.ours) if self.ours is not None and self.reference.quantity.is_time else None

    def as_dict(self) -> dict[str, Any]:
        """The pair as JSON data; an open end of a range is None."""
        reference, quantity = self.reference, self.reference.quantity
        low, high = reference.ends
        return {
            "point": self.group,
            "quantity": quantity.name,
            "unit": quantity.unit,
            "published": low if low == high else [low, None if math.isinf(high) else high],
            "ours": self.ours,
            "runs": self.runs,
            "difference": self.difference,
            "ratio": self.ratio,
            "hardware": reference.hardware,
            "flags": list(reference.flags),
            "note": reference.note,
            "place": reference.place,
            "source": reference.source,
            "table": reference.table,
            "row": reference.row,
        }


def pairs(
    references: Mapping[str, Sequence[Reference]],
    records: Mapping[str, Sequence[tuple[Result, Epochs]]],
    groups: Sequence[str],
    *,
    is_reduced: bool = False,
) -> list[Pair]:
    """Every published number of these groups with ours. `records` has the result and epochs of each complete run, by
    group.

    If the runs are reduced (fewer images or epochs), `ours` is None for quantities that depend on images or epochs.
    """
    return [
        _pair(group, reference, records.get(group, ()), is_reduced)
        for group in groups
        for reference in references.get(group, ())
    ]


def _pair(group: str, reference: Reference, records: Sequence[tuple[Result, Epochs]], is_reduced: bool) -> Pair:
    quantity = reference.quantity
    if is_reduced and quantity.depends_on_budget:
        return Pair(group, reference, None, 0)
    counted = [record for record in records if not quantity.is_time or had_machine_alone(record[0].get("environment"))]
    ours = [value for result, epochs in counted if (value := quantity.ours(result, epochs)) is not None]
    return Pair(group, reference, fmean(ours) if ours else None, len(ours))
