"""`favorit selftest`: checks that favorit computes correctly on a device."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from favorit.cli.shared import TableForm, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.selftest.run import Tally

TITLES = ("check", "passed", "failed", "seconds")


@with_fields
def selftest(
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.", metavar="DEVICE")] = "cpu",
    only: Annotated[
        str | None, typer.Option(help="Run only checks whose name or spec contains this text.", metavar="TEXT")
    ] = None,
    *,
    form: TableForm,
) -> None:
    """Test favorit on a device: the invariants of every mixer, the losses of a tiny model, and a short training run in
    each precision.

    This takes about two minutes and prints a summary to paste into an issue. The exit code is 1 if a check fails.

    Examples: [bold]favorit selftest --device cuda[/bold], [bold]favorit selftest --device mps --json[/bold],
    [bold]favorit selftest --device cuda --only "favor(m=24)"[/bold]
    """
    from favorit.cli.progress import delayed_bar
    from favorit.selftest.devices import find_device
    from favorit.selftest.run import list_trials, run_trials, tally

    trials = list_trials(find_device(device), only)
    console = form.open_console()
    with delayed_bar(console, f"selftest on {device}") as listen:
        outcomes = run_trials(trials, listen)
    tallies = list(tally(outcomes))
    environment = _environment(device)
    rows = [[each.check, str(each.passed), str(len(each.failures)), f"{each.seconds:.1f}"] for each in tallies]
    heading = ", ".join(f"{name} {value}" for name, value in environment.items() if value is not None)
    form.write(TITLES, rows, right=TITLES[1:], heading=heading)
    for each in tallies:
        if each.failures:
            console.print(_failure(each), markup=False, soft_wrap=True)
    failed = sum(len(each.failures) for each in tallies)
    verdict = f"{len(outcomes) - failed} of {len(outcomes)} checks passed on {device}"
    seconds = sum(outcome.seconds for outcome in outcomes)
    console.print(f"{verdict}, {failed} failed, in {seconds:.0f} s", markup=False, soft_wrap=True)
    if form.as_json:
        echo(json.dumps(_summary(environment, tallies)))
    if failed:
        raise typer.Exit(1)


def _environment(device: str) -> dict[str, Any]:
    """Versions and hardware."""
    from favorit import __version__
    from favorit.measure import fingerprint

    return {"favorit": __version__, "device": device, **fingerprint()}


def _failure(failed: Tally) -> str:
    """One line: the failure with the largest error, then the other subjects that failed."""
    worst, *others = failed.failures
    count = f"{len(failed.failures)} of {len(failed.failures) + failed.passed}"
    also = f"; also {', '.join(each.subject for each in others)}" if others else ""
    return f"FAILED {failed.check}, {count}: {worst.subject}: {worst.error}{also}"


def _summary(environment: dict[str, Any], tallies: Sequence[Tally]) -> dict[str, Any]:
    """The environment, a tally of each check, and the failures, for JSON. JSON has no infinity, so an infinite excess
    becomes null.
    """
    failures = [
        {**outcome._asdict(), "excess": outcome.excess if math.isfinite(outcome.excess) else None}
        for each in tallies
        for outcome in each.failures
    ]
    checks = {
        each.check: {"passed": each.passed, "failed": len(each.failures), "seconds": each.seconds} for each in tallies
    }
    return {"environment": environment, "checks": checks, "failures": failures}
