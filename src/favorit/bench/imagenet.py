"""The nine models of the synthetic ImageNet table, ours beside the published ones.

An epoch has 10,000 images, a batch of inference 64: times at another batch are scaled to these in proportion to the
images.
"""

from __future__ import annotations

from dataclasses import dataclass

from favorit import published
from favorit.bench.models import INFERENCE, STEP
from favorit.bench.speed import Cost
from favorit.config import ModelConfig

# The presets that a published table of times goes with.
PUBLISHED = {"vit-192-imagenet": "synthetic_imagenet"}
# The report's word for a kernel, and ours.
KERNELS = {"relu": "relu", "softmax": "favor"}
EPOCH, BATCH = 10_000, 64


@dataclass(frozen=True)
class Times:
    """Seconds of a training epoch; milliseconds of an inference batch, their deviation where it is known."""

    epoch: float
    batch: float
    deviation: float | None = None


@dataclass(frozen=True)
class Beside:
    """One model; the ratios are to the first row of the table, which is all_standard."""

    layout: str
    performer: str | None
    ours: Times
    published: Times
    ours_ratio: Times
    published_ratio: Times


def beside_published(
    table: published.Table, models: dict[str, ModelConfig], costs: list[Cost], batch: int
) -> list[Beside]:
    """A row for each published one, in the published order."""
    measured = {(models[cost.name].layout, models[cost.name].performer, cost.what): cost for cost in costs}
    standard = next(config.performer for config in models.values())  # what its layout does not use
    pairs = []
    for row in table.rows:
        performer = f"{KERNELS[str(row['kernel'])]}(m={row['m']:g})" if row["kernel"] else None
        step, inference = (measured[str(row["layout"]), performer or standard, what] for what in (STEP, INFERENCE))
        share = BATCH / batch
        ours = Times(step.mean / 1e3 * EPOCH / batch, inference.mean * share, inference.deviation * share)
        pairs.append(
            (
                str(row["layout"]),
                performer,
                ours,
                Times(_number(row["train_s_per_epoch"]), _number(row["infer_ms_per_batch"])),
            )
        )
    _, _, our_first, their_first = pairs[0]
    return [Beside(*pair, _over(pair[2], our_first), _over(pair[3], their_first)) for pair in pairs]


def _over(times: Times, first: Times) -> Times:
    return Times(times.epoch / first.epoch, times.batch / first.batch)


def _number(cell: str | float | None) -> float:
    if not isinstance(cell, float):
        raise ValueError(f"a published time that is no number: {cell!r}")
    return cell
