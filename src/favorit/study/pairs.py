"""Published numbers paired with ours."""

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
    """A published number of a group of points, and ours: the mean over `runs` runs, or None if no run has it."""

    group: str
    reference: Reference
    ours: float | None
    runs: int

    @property
    def difference(self) -> float | None:
        """ours - published (for a range the distance to it); None for times, which come from other hardware."""
        if self.ours is None or self.reference.quantity.is_time:
            return None
        return self.reference.difference(self.ours)

    @property
    def ratio(self) -> float | None:
        """ours / published, for times only."""
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
    """Every published number of these groups with ours; `records` has the results and epochs of their complete runs.

    If the runs are reduced (fewer images or epochs), quantities that depend on images or epochs have no value of ours.
    """
    return [
        _pair(group, reference, records.get(group, ()), is_reduced)
        for group in groups
        for reference in references.get(group, ())
    ]


def _pair(group: str, reference: Reference, records: Sequence[tuple[Result, Epochs]], is_reduced: bool) -> Pair:
    quantity = reference.quantity
    if is_reduced and quantity.is_of_budget:
        return Pair(group, reference, None, 0)
    counted = [record for record in records if not quantity.is_time or had_machine_alone(record[0].get("environment"))]
    ours = [value for result, epochs in counted if (value := quantity.ours(result, epochs)) is not None]
    return Pair(group, reference, fmean(ours) if ours else None, len(ours))
