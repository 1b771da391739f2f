"""Differences in test accuracy between variants of a study, on the same test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from favorit.errors import FavoritError
from favorit.reports.runs import ReportRun, Variant
from favorit.study.statistics import Difference, paired_bootstrap
from favorit.training.find import open_run
from favorit.training.predictions import Predictions

DRAWS = 2_000  # enough for two digits of a 95 % interval in percentage points


@dataclass(frozen=True)
class Lead:
    """The accuracy of `first` minus that of `second`, in [0, 1], with its 95 % interval over images and runs."""

    first: str
    second: str
    difference: Difference

    @property
    def is_decided(self) -> bool:
        """True if the interval excludes 0."""
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def points(self) -> str:
        """The difference with its interval in percentage points: `+0.9 points (0.1 to 1.7)`."""
        low, high = 100 * self.difference.low, 100 * self.difference.high
        return f"{100 * self.difference.mean:+.1f} points ({low:+.1f} to {high:+.1f})"


def lead(first: Sequence[Variant], second: Sequence[Variant], names: tuple[str, str]) -> Lead | None:
    """The lead of some variants over others, the mean over all runs of each side.

    None if a side has no complete run, if the runs were tested on different images, or if predictions are damaged.
    """
    sides = [[run for variant in side for run in variant.complete] for side in (first, second)]
    if not all(sides):
        return None
    try:
        predictions = [[_predictions(run.path) for run in side] for side in sides]
    except FavoritError:
        return None
    if len({each.labels_digest for side in predictions for each in side}) > 1:
        return None
    a, b = (np.stack([each.correct for each in side]) for side in predictions)
    return Lead(*names, paired_bootstrap(a, b, draws=DRAWS))


def has_seeds(*variants: Variant) -> bool:
    """True if each variant has at least two complete runs, so that its interval covers seeds."""
    return all(len(variant.complete) > 1 for variant in variants)


def mean_accuracy(runs: Sequence[ReportRun]) -> float:
    """The mean test accuracy of complete runs."""
    return float(np.mean([run.accuracy for run in runs]))


@lru_cache(maxsize=10_000)  # several questions compare the same runs; the predictions of a run take about 30 kB
def _predictions(path: Path) -> Predictions:
    return open_run(path).predictions()
