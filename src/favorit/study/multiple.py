"""Compares more than two variants: all pairs, or all against one, with p-values corrected for multiple comparisons.

The p-value of a pair is McNemar's if both variants have one run, else that of the paired bootstrap over images and
seeds. All p-values of one call are corrected together with Holm's method: sorted in ascending order, the i-th of n
(from 0) is multiplied by n - i, and none is smaller than the one before. So the probability of any wrong verdict is at
most 5 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from favorit.errors import FavoritError, unknown
from favorit.study.runner import status
from favorit.study.statistics import (
    CONFIDENCE,
    Difference,
    Interval,
    Variant,
    confounded,
    mcnemar,
    paired_bootstrap,
    read_variant,
    same_run,
)
from favorit.study.study import Options, Study, matches
from favorit.training.find import find_run

# With 10,000 bootstrap draws, a p-value is at least 0.0002: of 200 pairs, one can still be below 0.05 after correction.
MAX_PAIRS = 200
BOOTSTRAP = "bootstrap"
MCNEMAR = "McNemar"


@dataclass(frozen=True)
class Ranked:
    """A variant: its accuracy, its runs, and the digest of the labels of its test images."""

    name: str
    accuracy: Interval
    flags: list[str]
    runs: list[str]
    labels_digest: str


@dataclass(frozen=True)
class Pair:
    """Two variants on the same test images. `difference` is the accuracy of `a` minus that of `b`; its interval is not
    corrected. `test` names the test of `p`, and `corrected` is `p` after Holm's correction.
    """

    a: str
    b: str
    difference: Difference
    p: float
    corrected: float
    test: str
    confounded: list[str]

    @property
    def verdict(self) -> str:
        """`better` or `worse` if the corrected p-value is below 0.05, else `undecided`; it says what `a` is."""
        if self.corrected >= 1 - CONFIDENCE:
            return "undecided"
        return "better" if self.difference.mean > 0 else "worse"


@dataclass(frozen=True)
class Comparisons:
    """Variants, best first, and their pairs, better variant first; or all pairs with the variant `against`."""

    variants: list[Ranked]
    pairs: list[Pair]
    against: str | None = None


def compare_all(
    variants: Mapping[str, Variant],
    against: str | None = None,
    *,
    draws: int = 10_000,
    seed: int = 0,
    listen: Callable[[int, int], None] = lambda done, total: None,
) -> Comparisons:
    """Compares all pairs of named variants that were tested on the same images, or all variants with `against`.

    `listen(done, total)` is called after each pair.
    """
    if against is not None:
        against = _find(against, variants)
    names = sorted(variants, key=lambda name: -variants[name].accuracy.mean)
    pairs = [
        (a, b)
        for a, b in (combinations(names, 2) if against is None else ((name, against) for name in names))
        if a != b and variants[a].labels_digest == variants[b].labels_digest
    ]
    if not pairs:
        raise FavoritError(f"no two of these variants were tested on the same images: {', '.join(names)}")
    if len(pairs) > MAX_PAIRS:
        raise FavoritError(
            f"{len(names)} variants give {len(pairs):,} pairs, more than {MAX_PAIRS}: compare all of them with one "
            "(--against NAME), or choose some (--only PATTERN)"
        )
    found = []
    for done, (a, b) in enumerate(pairs, 1):
        found.append(_pair(a, b, variants[a], variants[b], draws, seed))
        listen(done, len(pairs))
    corrected = holm([pair.p for pair in found])
    return Comparisons(
        [_ranked(name, variants[name]) for name in names],
        [replace(pair, corrected=p) for pair, p in zip(found, corrected, strict=True)],
        against,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p-values, in their order."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected.tolist()


def _pair(a: str, b: str, first: Variant, second: Variant, draws: int, seed: int) -> Pair:
    difference = paired_bootstrap(first.correct, second.correct, draws=draws, seed=seed)
    p, test = difference.p, BOOTSTRAP
    if len(first.correct) == len(second.correct) == 1:
        p, test = mcnemar(first.correct[0], second.correct[0]), MCNEMAR
    return Pair(a, b, difference, p, p, test, confounded(first.runs[0], second.runs[0]))


def _ranked(name: str, variant: Variant) -> Ranked:
    return Ranked(name, variant.accuracy, variant.flags, [run.id for run in variant.runs], variant.labels_digest)


def _find(text: str, names: Mapping[str, Variant]) -> str:
    """The variant of this name, or the only one whose name contains the text."""
    found = [text] if text in names else [name for name in names if matches(name, text)]
    if len(found) > 1:
        raise FavoritError(f"--against {text} is in the names of {len(found)} variants: {', '.join(found)}")
    if not found:
        raise unknown("variant in --against", text, names)
    return found[0]


def named_variants(given: Sequence[Sequence[str]], folder: str | Path = "runs") -> dict[str, Variant]:
    """The variants of these texts (see `read_variant`) by name. Variants of equal layers are named with their run."""
    variants = [read_variant(each, folder) for each in given]
    counts = Counter(run.id for variant in variants for run in variant.runs)
    for identifier in (run for run, count in counts.items() if count > 1):
        raise same_run(identifier)
    alike = Counter(variant.name for variant in variants)
    return {f"{each.name} ({each.runs[0].id[:8]})" if alike[each.name] > 1 else each.name: each for each in variants}


def study_variants(
    study: Study, out: str | Path = "runs", options: Options | None = None, data_dir: str | Path | None = None
) -> tuple[dict[str, Variant], list[str]]:
    """The variants of a study that have complete runs, by the name of their group; and the groups that have none."""
    groups: dict[str, list[Path]] = {}
    for state in status(study, out, options=options, data_dir=data_dir):
        paths = groups.setdefault(state.group, [])
        if state.status == "complete":
            paths.append(find_run(state.id, out).path)
    found = {group: read_variant(paths) for group, paths in groups.items() if paths}
    if len(found) < 2:
        variants = f"{len(found)} variant{'' if len(found) == 1 else 's'}"
        raise FavoritError(
            f"study {study.name} has complete runs of {variants} in {out}, and a comparison needs two: "
            "give the --runs, --scale and --seeds they were run with, or train them with 'favorit study run'"
        )
    return found, [group for group, paths in groups.items() if not paths]
