"""What numbers of several seeds and of two variants say, and what they do not.

Accuracies are shares of 1; `correct` is an array of truth values, (images) or (seeds, images), the images in the same
order everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from favorit.errors import FavoritError
from favorit.study.lookup import PublishedAccuracy, published_accuracy

if TYPE_CHECKING:
    from favorit.config import RunConfig
    from favorit.published import Reference
    from favorit.training import Run

CONFIDENCE = 0.95
SIMILAR = 0.1  # parameters that differ by more are a difference of their own


@dataclass(frozen=True)
class Interval:
    """The mean of n values, their sample standard deviation, and the 95 % interval of the mean; one value has
    neither.
    """

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Accuracy of the first variant minus that of the second, with its 95 % interval."""

    mean: float
    low: float
    high: float


def aggregate(values: Sequence[float]) -> Interval:
    """mean +- t(n - 1) s / sqrt(n), with t the 97.5 % point of Student's distribution."""
    if not len(values):
        raise FavoritError("there is nothing to aggregate: give the value of at least one run")
    n, mean = len(values), fmean(values)
    if n == 1:
        return Interval(mean, None, None, None, 1)
    deviation = stdev(values)
    half = _student(n - 1) * deviation / n**0.5
    return Interval(mean, deviation, mean - half, mean + half, n)


def _student(freedom: int) -> float:
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def paired_bootstrap(correct_a: Any, correct_b: Any, *, draws: int = 10_000, seed: int = 0) -> Difference:
    """The difference in accuracy on the same images, and the 2.5 % and 97.5 % points of what it is on images (and
    seeds) drawn anew.

    Images are drawn with replacement, the same for both. Of S > 1 seeds of a variant S - 1 are drawn: a mean of those
    varies as much as a mean of S seeds does. One seed cannot say how much another would change: the interval is then
    that of these very weights. Images with the same outcomes in all runs are interchangeable, so that only how many of
    each sort are drawn is drawn.
    """
    a, b = _runs_by_images(correct_a), _runs_by_images(correct_b)
    images = a.shape[1]
    if images != b.shape[1] or not images:
        raise FavoritError(
            f"the variants have {images} and {b.shape[1]} images: a paired comparison needs the same ones"
        )
    generator = np.random.default_rng(seed)
    sorts, counts = np.unique(np.concatenate([a, b]), axis=1, return_counts=True)
    found = []
    for part in np.array_split(
        np.empty(draws), max(1, draws * len(counts) // 10**7)
    ):  # no more than some 100 MB at once
        drawn = generator.multinomial(images, counts / images, len(part))
        share_a, share_b = _seed_weights(len(a), len(part), generator), _seed_weights(len(b), len(part), generator)
        found.append(((share_a @ sorts[: len(a)] - share_b @ sorts[len(a) :]) * drawn).sum(1) / images)
    low, high = np.quantile(np.concatenate(found), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Difference(float(a.mean() - b.mean()), float(low), float(high))


def _runs_by_images(correct: Any) -> np.ndarray:
    array = np.atleast_2d(np.asarray(correct, dtype=bool))
    if array.ndim != 2:
        raise FavoritError(f"correct has the shape {array.shape}: (images) or (seeds, images)")
    return array


def _seed_weights(seeds: int, draws: int, generator: np.random.Generator) -> np.ndarray:
    """(draws, seeds): the share of each seed in each draw."""
    if seeds == 1:
        return np.ones((draws, 1))
    return generator.multinomial(seeds - 1, np.full(seeds, 1 / seeds), draws) / (seeds - 1)


def mcnemar(correct_a: Any, correct_b: Any) -> float:
    """p of the images that only one of two runs gets right being split as unevenly, or more, by a fair coin: exact for
    any number.
    """
    from scipy.special import bdtr

    a, b = np.asarray(correct_a, dtype=bool), np.asarray(correct_b, dtype=bool)
    if a.ndim != 1 or a.shape != b.shape:
        raise FavoritError(
            f"McNemar's test takes one run of each variant on the same images, not {a.shape} and {b.shape}"
        )
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    return min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def confounded(run_a: Run, run_b: Run) -> list[str]:
    """What differs between two runs beyond their mixers: stem, tokens, parameters by more than 10 %, recipe, data.
    Empty: a fair pair.
    """
    a, b = run_a.config, run_b.config
    found = _against("stem", _stem(a), _stem(b)) + _against("tokens", _tokens(a), _tokens(b))
    few, many = sorted((run_a.result["parameters"], run_b.result["parameters"]))
    if many > (1 + SIMILAR) * few:
        found += _against("parameters", f"{run_a.result['parameters']:,}", f"{run_b.result['parameters']:,}")
    for section in ("train", "data"):
        written_a, written_b = _written(a, section), _written(b, section)
        for name in written_a:
            found += _against(f"{section}.{name}", written_a[name], written_b[name])
    return found


def _against(what: str, a: Any, b: Any) -> list[str]:
    return [] if a == b else [f"{what} {a} against {b}"]


def _stem(config: RunConfig) -> str:
    from favorit.model import STEMS

    return str(STEMS.canonical(config.model.stem))


def _tokens(config: RunConfig) -> int:
    """Tokens of the grid. The stem is built without memory: its weights do not matter."""
    import torch

    from favorit.model import STEMS

    model = config.model
    with torch.device("meta"):
        stem = STEMS.build(model.stem, image_channels=model.channels, dim=model.dim, image_size=model.image_size)
    return int(np.prod(stem.grid(model.image_size)))


def _written(config: RunConfig, section: str) -> dict[str, str]:
    """The fields of a section as text, optimiser and schedule in one form."""
    from favorit.training.optim import OPTIMIZERS, SCHEDULES

    found = {
        name: "none" if value is None else str(value)
        for name, value in getattr(config, section).model_dump(mode="json").items()
    }
    for name, registry in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        if name in found:
            found[name] = str(registry.canonical(found[name]))
    return found


@dataclass(frozen=True)
class Variant:
    """The finished runs of one variant (its seeds) on one test set."""

    name: str
    runs: tuple[Run, ...]
    labels_digest: str
    correct: np.ndarray

    @property
    def accuracy(self) -> Interval:
        return aggregate(self.correct.mean(1).tolist())

    @property
    def flags(self) -> list[str]:
        """What a reader must know of these runs: their flags, and the scale if they are of a reduced study."""
        scales = [f"scale {run.config.scale}" for run in self.runs if run.config.scale is not None]
        return list(dict.fromkeys([*scales, *(flag for run in self.runs for flag in run.result.get("flags", []))]))


@dataclass(frozen=True)
class Comparison:
    """Two variants on the same test images. `p` is McNemar's, for one run of each; `confounded` says what else differs.

    `published_a` and `published_b` are the published accuracies of runs that belong to a built-in study.
    """

    a: str
    b: str
    images: int
    accuracy_a: Interval
    accuracy_b: Interval
    difference: Difference
    p: float | None
    confounded: list[str]
    published_a: PublishedAccuracy
    published_b: PublishedAccuracy
    flags_a: list[str]
    flags_b: list[str]

    @property
    def published_differences(self) -> list[tuple[Reference, Reference, float, float]]:
        """(a, b, low, high) for each pair of published accuracies of one table: published a - published b lies from low
        to high.
        """
        pairs = [(a, b) for a in self.published_a.references for b in self.published_b.references if a.table == b.table]
        return [(a, b, a.ends[0] - b.ends[1], a.ends[1] - b.ends[0]) for a, b in pairs]

    @property
    def sentence(self) -> str:
        """What it comes to, in words."""
        found = self.difference
        told = "distinguishable" if found.low > 0 or found.high < 0 else "not distinguishable"
        return (
            f"{self.a} is {abs(100 * found.mean):.1f} points {'below' if found.mean < 0 else 'above'} {self.b} on the same "
            f"{self.images:,} images (95 % interval {100 * found.low:.1f} to {100 * found.high:.1f}): {told}"
        )


def read_variant(folders: Sequence[str | Path]) -> Variant:
    """The runs in these folders or packed files, which may differ in seed and fold alone, with what each predicted."""
    from favorit.training import Run
    from favorit.training.find import open_run

    if not folders:
        raise FavoritError("a variant is one run folder or several: none is given")
    runs = tuple(Run(Path(folder)) for folder in folders)
    predictions = [run.predictions for run in runs]
    first, digest = runs[0], predictions[0].labels_digest
    for run, own in zip(runs, predictions, strict=True):
        if _variant_of(run) != _variant_of(first):
            raise FavoritError(
                f"{run.path} and {first.path} are not seeds of one variant: their configurations differ in more than the seed"
            )
        if own.labels_digest != digest:
            raise FavoritError(f"{run.path} and {first.path} were tested on different images: their labels differ")
    name = open_run(first.path).config().get("layers", first.id)
    return Variant(name, runs, digest, np.stack([each.correct for each in predictions]))


def _variant_of(run: Run) -> RunConfig:
    config = run.config
    return config.replace(seed=0, data=config.data.replace(fold=None))


def compare(a: Sequence[str | Path], b: Sequence[str | Path], *, draws: int = 10_000, seed: int = 0) -> Comparison:
    """Two variants, each the folders of its seeds, compared image by image."""
    first, second = read_variant(a), read_variant(b)
    if first.labels_digest != second.labels_digest:
        raise FavoritError(
            f"{first.runs[0].path} and {second.runs[0].path} were tested on different images: their labels differ"
        )
    alike = first.name == second.name
    names = [f"{variant.name} ({variant.runs[0].id[:8]})" if alike else variant.name for variant in (first, second)]
    single = len(first.correct) == len(second.correct) == 1
    return Comparison(
        a=names[0],
        b=names[1],
        images=first.correct.shape[1],
        accuracy_a=first.accuracy,
        accuracy_b=second.accuracy,
        difference=paired_bootstrap(first.correct, second.correct, draws=draws, seed=seed),
        p=mcnemar(first.correct[0], second.correct[0]) if single else None,
        confounded=confounded(first.runs[0], second.runs[0]),
        published_a=published_accuracy(first.runs[0].config),
        published_b=published_accuracy(second.runs[0].config),
        flags_a=first.flags,
        flags_b=second.flags,
    )
