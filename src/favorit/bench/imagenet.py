"""The nine models of the published synthetic ImageNet table: our times next to the published ones.

In the published table, an epoch has 10,000 images and an inference batch has 64. Our times at another batch size are
converted in proportion to the number of images.
"""

from __future__ import annotations

from dataclasses import dataclass

from favorit import published
from favorit.bench.model_speed import INFERENCE, STEP
from favorit.bench.speed import Cost
from favorit.bench.spread import Ratio, ratio
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
    """The times of one model. Ratios are relative to all_standard, the first row of the table.

    Ours are medians of the ratios of rounds, with their interval.
    """

    layout: str
    performer: str | None
    ours: Times
    published: Times
    ours_epoch_ratio: Ratio
    ours_batch_ratio: Ratio
    published_ratio: Times


def compare_with_published(
    table: published.Table, models: dict[str, ModelConfig], costs: list[Cost], batch: int
) -> list[ModelTimes]:
    """One row for each published row, in the published order."""
    measured = {(models[cost.name].layout, models[cost.name].performer, cost.what): cost for cost in costs}
    # all_standard has no performer layers, but its configuration still names this performer.
    unused_performer = next(config.performer for config in models.values())
    rows: list[ModelTimes] = []
    first: tuple[Cost, Cost, Times] | None = None
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
        first = first or (step, inference, theirs)
        rows.append(
            ModelTimes(
                layout,
                performer,
                ours,
                theirs,
                ours_epoch_ratio=ratio(step.rounds, first[0].rounds),
                ours_batch_ratio=ratio(inference.rounds, first[1].rounds),
                published_ratio=Times(theirs.epoch / first[2].epoch, theirs.batch / first[2].batch),
            )
        )
    return rows


def _number(cell: str | float | None) -> float:
    if not isinstance(cell, float):
        raise ValueError(f"published time is not a number: {cell!r}")
    return cell
