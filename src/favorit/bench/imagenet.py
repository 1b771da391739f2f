"""The nine models of the published synthetic ImageNet table: our times next to the published ones.

In the published table, an epoch has 10,000 images and an inference batch has 64. Our times at another batch size are
converted in proportion to the number of images.
"""

from __future__ import annotations

from dataclasses import dataclass

from favorit import published
from favorit.bench.model_speed import INFERENCE, STEP
from favorit.bench.speed import Cost
from favorit.config import ModelConfig

# preset -> its published table of times
PUBLISHED = {"vit-192-imagenet": "synthetic_imagenet"}
# name of a kernel in the report -> our name
KERNELS = {"relu": "relu", "softmax": "favor"}
EPOCH_IMAGES, BATCH = 10_000, 64


@dataclass(frozen=True)
class Times:
    """Seconds of a training epoch, and milliseconds of an inference batch with their standard deviation if known."""

    epoch: float
    batch: float
    deviation: float | None = None


@dataclass(frozen=True)
class ModelTimes:
    """The times of one model. Ratios are relative to all_standard, the first row of the table."""

    layout: str
    performer: str | None
    ours: Times
    published: Times
    ours_ratio: Times
    published_ratio: Times


def compare_with_published(
    table: published.Table, models: dict[str, ModelConfig], costs: list[Cost], batch: int
) -> list[ModelTimes]:
    """One row for each published row, in the published order."""
    measured = {(models[cost.name].layout, models[cost.name].performer, cost.what): cost for cost in costs}
    # all_standard has no performer layers, but its configuration still names this performer.
    unused_performer = next(config.performer for config in models.values())
    rows = []
    for row in table.rows:
        performer = f"{KERNELS[str(row['kernel'])]}(m={row['m']:g})" if row["kernel"] else None
        layout = str(row["layout"])
        step, inference = (measured[layout, performer or unused_performer, what] for what in (STEP, INFERENCE))
        ours = Times(
            epoch=step.mean / 1e3 * EPOCH_IMAGES / batch,
            batch=inference.mean * BATCH / batch,
            deviation=inference.deviation * BATCH / batch,
        )
        theirs = Times(_number(row["train_s_per_epoch"]), _number(row["infer_ms_per_batch"]))
        rows.append((layout, performer, ours, theirs))
    _, _, our_first, their_first = rows[0]
    return [ModelTimes(*row, _ratio(row[2], our_first), _ratio(row[3], their_first)) for row in rows]


def _ratio(times: Times, first: Times) -> Times:
    return Times(times.epoch / first.epoch, times.batch / first.batch)


def _number(cell: str | float | None) -> float:
    if not isinstance(cell, float):
        raise ValueError(f"published time is not a number: {cell!r}")
    return cell
