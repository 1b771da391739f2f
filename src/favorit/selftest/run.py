"""The trials of `favorit selftest` on a device, and their outcomes.

A trial is one check of one subject: an invariant of a mixer, the golden losses, or a training run in one precision.
"""

from __future__ import annotations

import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from favorit.errors import FavoritError
from favorit.selftest import golden, short_run
from favorit.selftest.checks import MIXER_CHECKS, NEEDS_FP64, REQUIRED_CHECKS
from favorit.selftest.devices import Device
from favorit.selftest.inputs import TooFarError, case_builder


class Trial(NamedTuple):
    """The name of a check, the subject that it checks, and a function that raises an exception if it fails."""

    check: str
    subject: str
    run: Callable[[], None]


class Outcome(NamedTuple):
    """The outcome of a trial. `error` is None if it passed. `excess` is the difference divided by the tolerance, and
    infinite if the trial failed for another reason.
    """

    check: str
    subject: str
    seconds: float
    error: str | None
    excess: float


def list_trials(device: Device, only: str | None = None) -> list[Trial]:
    """All trials of a device, or those whose check or subject contains `only`."""
    conformance = [
        Trial(check, spec, partial(MIXER_CHECKS[check], device.moved(case_builder(case, spec)), device))
        for _, case, spec, check in REQUIRED_CHECKS
        if device.has_fp64 or check not in NEEDS_FP64
    ]
    trials = [
        *conformance,
        Trial("golden losses", "vit-64", partial(golden.losses_are_golden, device)),
        *(
            Trial("training", precision, partial(short_run.trains_as_in_fp32, precision, device))
            for precision in device.precisions
        ),
    ]
    chosen = [trial for trial in trials if only is None or only in trial.check or only in trial.subject]
    if not chosen:
        checks = ", ".join(dict.fromkeys(trial.check for trial in trials))
        raise FavoritError(f"--only {only!r}: no check and no spec contains it; checks: {checks}")
    return chosen


def run_trials(trials: Sequence[Trial], listen: Callable[[int, int], None]) -> list[Outcome]:
    """The outcome of each trial. Calls `listen(finished trials, all trials)` after each."""
    if not __debug__:
        raise FavoritError("python -O removes the assertions of these checks: run without -O")
    outcomes = []
    for trial in trials:
        outcomes.append(attempt(trial))
        listen(len(outcomes), len(trials))
    return outcomes


def attempt(trial: Trial) -> Outcome:
    """Runs a trial. Any exception counts as a failure: a device may not support an operation."""
    error, excess = None, 0.0
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial.run()
    except TooFarError as failure:
        error, excess = str(failure), failure.excess
        if math.isnan(excess):
            excess = math.inf
    except Exception as failure:
        error, excess = _describe(failure), math.inf
    return Outcome(trial.check, trial.subject, time.perf_counter() - start, error, excess)


def _describe(failure: Exception) -> str:
    """The first line of the message. For an assertion without a message, the source line of the assertion."""
    first = next(iter(str(failure).strip().splitlines()), "")
    if isinstance(failure, AssertionError):
        return first or str(traceback.extract_tb(failure.__traceback__)[-1].line)
    return f"{type(failure).__name__}: {first}"


class Tally(NamedTuple):
    """The outcomes of one check. Failures are sorted by excess, the largest first."""

    check: str
    passed: int
    failures: list[Outcome]
    seconds: float


def tally(outcomes: Sequence[Outcome]) -> Iterator[Tally]:
    """A tally of each check, in the order of the trials."""
    for check in dict.fromkeys(outcome.check for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.check == check]
        failures = sorted((each for each in own if each.error is not None), key=lambda each: -each.excess)
        yield Tally(check, len(own) - len(failures), failures, sum(outcome.seconds for outcome in own))
