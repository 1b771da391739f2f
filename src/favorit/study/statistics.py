"""Statistics over seeds, and comparisons of two variants on the same test images.

Accuracies lie in [0, 1]. `correct` is a Boolean array of shape (images) or (seeds, images), with the images in the same
order everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from favorit.errors import FavoritError
from favorit.study.lookup import PublishedAccuracy, published_accuracy

if TYPE_CHECKING:
    from favorit.config import RunConfig
    from favorit.published import Reference
    from favorit.training import Run

RunLike = Union["Run", str, Path]  # a run, its path, or the start of its identifier or name

CONFIDENCE = 0.95
SIMILAR = 0.1  # a larger relative difference in parameters is a confounder


@dataclass(frozen=True)
class Interval:
    """The mean of n values, their sample standard deviation and the 95 % interval of the mean (None for n = 1)."""

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Accuracy of the first variant minus that of the second, with its 95 % interval, and the two-sided bootstrap
    p-value of a difference of 0.
    """

    mean: float
    low: float
    high: float
    p: float


def aggregate(values: Sequence[float]) -> Interval:
    """mean +- t(n - 1) s / sqrt(n), where t is the 97.5 % quantile of Student's distribution."""
    if not len(values):
        raise FavoritError("no values to aggregate: give the value of at least one run")
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
    """The difference in accuracy on the same images, with a 95 % bootstrap interval over images and seeds.

    Each draw resamples images with replacement, the same images for both variants. With S > 1 seeds it draws S - 1 of
    them with replacement, because the mean of these draws varies as much as the mean of S independent seeds. With one
    seed the interval holds for these weights only, not for other seeds. Images with equal outcomes in all runs are
    interchangeable, so only their counts are drawn.
    """
    a, b = _runs_by_images(correct_a), _runs_by_images(correct_b)
    images = a.shape[1]
    if images != b.shape[1] or not images:
        raise FavoritError(
            f"the variants have {images} and {b.shape[1]} images: a paired comparison needs the same ones"
        )
    generator = np.random.default_rng(seed)
    outcomes, counts = np.unique(np.concatenate([a, b]), axis=1, return_counts=True)
    differences = []
    chunks = max(1, draws * len(counts) // 10**7)  # at most about 100 MB per chunk
    for chunk in np.array_split(np.empty(draws), chunks):
        drawn = generator.multinomial(images, counts / images, len(chunk))
        weights_a = _seed_weights(len(a), len(chunk), generator)
        weights_b = _seed_weights(len(b), len(chunk), generator)
        per_outcome = weights_a @ outcomes[: len(a)] - weights_b @ outcomes[len(a) :]
        differences.append((per_outcome * drawn).sum(1) / images)
    drawn = np.concatenate(differences)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    # The observed difference counts as a draw, so that p is never 0.
    p = min(1.0, 2 * (1 + min((drawn <= 0).sum(), (drawn >= 0).sum())) / (1 + draws))
    return Difference(float(a.mean() - b.mean()), float(low), float(high), float(p))


def _runs_by_images(correct: Any) -> np.ndarray:
    array = np.atleast_2d(np.asarray(correct, dtype=bool))
    if array.ndim != 2:
        raise FavoritError(f"correct has shape {array.shape}, not (images) or (seeds, images)")
    return array


def _seed_weights(seeds: int, draws: int, generator: np.random.Generator) -> np.ndarray:
    """The weight of each seed in each draw, of shape (draws, seeds)."""
    if seeds == 1:
        return np.ones((draws, 1))
    return generator.multinomial(seeds - 1, np.full(seeds, 1 / seeds), draws) / (seeds - 1)


def mcnemar(correct_a: Any, correct_b: Any) -> float:
    """The p-value of McNemar's exact test. It is the probability that fair coin flips split the images on which exactly
    one run is right at least as unevenly as observed.
    """
    from scipy.special import bdtr

    a, b = np.asarray(correct_a, dtype=bool), np.asarray(correct_b, dtype=bool)
    if a.ndim != 1 or a.shape != b.shape:
        raise FavoritError(
            f"McNemar's test needs one run of each variant on the same images, not shapes {a.shape} and {b.shape}"
        )
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    return min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def confounded(run_a: Run, run_b: Run) -> list[str]:
    """The confounders of two runs: differences in stem, tokens, parameters (by more than 10 %), recipe or data. Empty
    for a fair comparison.
    """
    a, b = run_a.config, run_b.config
    found = _difference("stem", _stem(a), _stem(b)) + _difference("tokens", _tokens(a), _tokens(b))
    fewer, more = sorted((run_a.result["parameters"], run_b.result["parameters"]))
    if more > (1 + SIMILAR) * fewer:
        found += _difference("parameters", f"{run_a.result['parameters']:,}", f"{run_b.result['parameters']:,}")
    for section in ("train", "data"):
        fields_a = _canonical_fields(a, section)
        fields_b = _canonical_fields(b, section)
        for name in fields_a:
            found += _difference(f"{section}.{name}", fields_a[name], fields_b[name])
    return found


def _difference(what: str, a: Any, b: Any) -> list[str]:
    return [] if a == b else [f"{what} {a} against {b}"]


def _stem(config: RunConfig) -> str:
    from favorit.model import STEMS

    return str(STEMS.canonical(config.model.stem))


def _tokens(config: RunConfig) -> int:
    """The number of tokens of the grid. The stem is built on the meta device, because its weights are not needed."""
    import torch

    from favorit.model import STEMS

    model = config.model
    with torch.device("meta"):
        stem = STEMS.build(model.stem, image_channels=model.channels, dim=model.dim, image_size=model.image_size)
    return int(np.prod(stem.grid(model.image_size)))


def _canonical_fields(config: RunConfig, section: str) -> dict[str, str]:
    """The fields of a section as text, with optimizer and schedule in canonical form."""
    from favorit.training.optim import OPTIMIZERS, SCHEDULES

    found = {
        name: "none" if value is None else str(value)
        for name, value in getattr(config, section).model_dump(mode="json").items()
        if name != "skip_unreadable"  # no part of a run's identity: the digest of the images is
    }
    for name, registry in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        if name in found:
            found[name] = str(registry.canonical(found[name]))
    return found


@dataclass(frozen=True)
class Variant:
    """The complete runs (seeds) of one variant on one test set."""

    name: str
    runs: tuple[Run, ...]
    labels_digest: str
    correct: np.ndarray

    @property
    def accuracy(self) -> Interval:
        return aggregate(self.correct.mean(1).tolist())

    @property
    def flags(self) -> list[str]:
        """The flags of the runs, and their scale if it is reduced."""
        scales = [f"scale {run.config.scale}" for run in self.runs if run.config.scale is not None]
        return list(dict.fromkeys([*scales, *(flag for run in self.runs for flag in run.result.get("flags", []))]))


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two variants on the same test images. `p` is McNemar's p-value, or None if a variant has several runs.

    `published_a` and `published_b` are the published accuracies of runs that match a built-in study.
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

    def __repr__(self) -> str:
        sides = ((self.a, self.accuracy_a), (self.b, self.accuracy_b))
        lines = [
            f"{name}: {accuracy.mean:.2%}, {accuracy.n} run{'' if accuracy.n == 1 else 's'}" for name, accuracy in sides
        ]
        lines += [self.sentence] + ([] if self.p is None else [f"McNemar: p = {self.p:.3g}"])
        lines += [f"confounded by {'; '.join(self.confounded)}"] if self.confounded else []
        return "\n".join(["<Comparison>", *lines])

    @property
    def published_differences(self) -> list[tuple[Reference, Reference, float, float]]:
        """(a, b, low, high) for each pair of published accuracies of one table, with low <= a - b <= high."""
        pairs = [(a, b) for a in self.published_a.references for b in self.published_b.references if a.table == b.table]
        return [(a, b, a.ends[0] - b.ends[1], a.ends[1] - b.ends[0]) for a, b in pairs]

    @property
    def sentence(self) -> str:
        """The conclusion as a sentence."""
        found = self.difference
        points = f"{abs(100 * found.mean):.1f} points {'below' if found.mean < 0 else 'above'}"
        verdict = "better" if found.low > 0 else "worse" if found.high < 0 else "undecided"
        return (
            f"{self.a} is {points if found.mean else 'as accurate as'} {self.b} on the same {self.images:,} images "
            f"(95 % interval {100 * found.low:.1f} to {100 * found.high:.1f}): {verdict}"
        )


def read_variant(given: RunLike | Sequence[RunLike], folder: str | Path = "runs") -> Variant:
    """The variant of these runs, which may differ only in seed and fold. Text is read as in `find_variant`."""
    from favorit.training import Run
    from favorit.training.components import open_config
    from favorit.training.find import find_variant, open_run

    listed: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if not listed:
        raise FavoritError("a variant needs at least one run folder: none is given")
    found = [[each] if isinstance(each, Run) else find_variant(each, folder) for each in listed]
    runs = tuple(Run(run.path) for each in found for run in each)
    if repeated := [run for run, count in Counter(run.id for run in runs).items() if count > 1]:
        raise same_run(repeated[0])
    for run in runs:  # its components are needed to compare recipes
        open_config(open_run(run.path))
    predictions = [run.predictions for run in runs]
    first, digest = runs[0], predictions[0].labels_digest
    for run, own in zip(runs, predictions, strict=True):
        if _variant_of(run) != _variant_of(first):
            raise FavoritError(
                f"{run.path} and {first.path} are not seeds of one variant: their configurations differ in more "
                "than the seed"
            )
        if own.labels_digest != digest:
            raise FavoritError(f"{run.path} and {first.path} were tested on different images: their labels differ")
    name = open_run(first.path).config().get("layers", first.id)
    return Variant(name, runs, digest, np.stack([each.correct for each in predictions]))


def same_run(identifier: str) -> FavoritError:
    """The error for a run that is given twice."""
    return FavoritError(f"the run {identifier} is given twice: a run that is compared with itself shows no difference")


def _variant_of(run: Run) -> RunConfig:
    config = run.config
    return config.replace(seed=0, data=config.data.replace(fold=None, skip_unreadable=False))


def compare(
    a: RunLike | Sequence[RunLike],
    b: RunLike | Sequence[RunLike],
    *,
    folder: str | Path = "runs",
    draws: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compares two variants image by image. Each is a run, its folder, the start of its identifier or name in
    `folder`, or a list of these with one for each seed.

    The interval of the difference comes from `draws` bootstrap samples with this `seed`.

    Example:
        favorit.compare("runs/0123456789abcdef", ["runs/fedcba9876543210", "runs/0011223344556677"])
    """
    first, second = read_variant(a, folder), read_variant(b, folder)
    if first.labels_digest != second.labels_digest:
        raise FavoritError(
            f"{first.runs[0].path} and {second.runs[0].path} were tested on different images: their labels differ"
        )
    if shared := {run.id for run in first.runs} & {run.id for run in second.runs}:
        raise same_run(min(shared))
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
