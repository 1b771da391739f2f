"""The slowdown of a training step next to one busy process.

Three settings are compared: one thread, all threads as favorit runs them, and all threads with default spinning.
`python -m favorit.bench.busy JSON` is the worker process of one setting.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from favorit.bench.spread import Ratio, measure_rounds, ratio
from favorit.bench.timed_process import TimedProcess
from favorit.bench.timing import Stats, describe
from favorit.bench.timing_worker import open_replies, read_request, serve_timings, write_reply
from favorit.config import ModelConfig
from favorit.process import SPINNING, default_environment, worker_settings

ONE, OURS, DEFAULT = "one thread", "favorit", "default spinning"
QUIET, BUSY = "quiet", "busy"
QUIET_TARGET = 1.03  # largest ratio to default spinning on a quiet machine
BUSY_TARGET = 1.6  # largest ratio to one thread next to a busy process
MAX_BUSY_SECONDS = 600.0  # a busy process ends after this time even if nothing stops it

# Spins until it is killed, its parent has ended, or its time is up.
_SPIN = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
print(flush=True)
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(100000):
        pass
"""


@dataclass(frozen=True)
class Slowdown:
    """Milliseconds of a step with one setting, on the quiet machine and next to one busy process.

    `to_default` is the ratio of the quiet time to that of default spinning. `to_one_thread` is the ratio of the busy
    time to that of one thread.
    """

    name: str
    quiet: Stats
    busy: Stats
    to_default: Ratio
    to_one_thread: Ratio


def slowdowns(model: ModelConfig, batch: int, *, steps: int = 8, repeats: int = 6) -> list[Slowdown]:
    """The slowdown of each setting.

    Each setting has its own process. In each round, every process runs `steps` steps on the quiet machine, then every
    process runs `steps` steps next to the busy process. Rounds continue as in `measure_rounds` until both targets are
    decided.
    """
    request = {"model": model.model_dump(mode="json"), "batch": batch, "steps": steps}
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(TimedProcess("favorit.bench.busy", request, variables))
            for name, variables in settings().items()
        }
        for process in processes.values():
            process.reply()

        def time_round() -> dict[tuple[str, str], float]:
            quiet = {(QUIET, name): _step_milliseconds(process, steps) for name, process in processes.items()}
            with busy_process():
                busy = {(BUSY, name): _step_milliseconds(process, steps) for name, process in processes.items()}
            return quiet | busy

        rounds = measure_rounds(time_round, repeats, lambda found: None not in are_met(compare(found)).values())
    return compare(rounds)


def settings() -> dict[str, dict[str, str]]:
    """The environment of each setting. All keep large buffers: only threads and spinning differ."""
    ours = {**default_environment(), **worker_settings()}
    return {
        ONE: {**ours, "OMP_NUM_THREADS": "1"},
        OURS: ours,
        DEFAULT: {name: value for name, value in ours.items() if name not in SPINNING},
    }


def compare(rounds: Mapping[tuple[str, str], Sequence[float]]) -> list[Slowdown]:
    """The slowdowns, from the milliseconds of a step in each round by (`QUIET` or `BUSY`, setting)."""
    return [
        Slowdown(
            name,
            describe(rounds[QUIET, name]),
            describe(rounds[BUSY, name]),
            ratio(rounds[QUIET, name], rounds[QUIET, DEFAULT]),
            ratio(rounds[BUSY, name], rounds[BUSY, ONE]),
        )
        for name in (ONE, OURS, DEFAULT)
    ]


def are_met(found: Sequence[Slowdown]) -> dict[str, bool | None]:
    """Whether favorit meets the targets of the quiet and of the busy machine; None if undecided."""
    ours = next(each for each in found if each.name == OURS)
    return {QUIET: ours.to_default.is_at_most(QUIET_TARGET), BUSY: ours.to_one_thread.is_at_most(BUSY_TARGET)}


def verdict(found: Sequence[Slowdown]) -> str:
    """One sentence: favorit's ratios, the targets, and whether they are met."""
    ours = next(each for each in found if each.name == OURS)
    met = {case: {True: "met", False: "missed", None: "undecided"}[is_met] for case, is_met in are_met(found).items()}
    return (
        f"{OURS}: {ours.to_default.text} the time of {DEFAULT} on a quiet machine "
        f"(target at most {QUIET_TARGET}: {met[QUIET]}), "
        f"{ours.to_one_thread.text} the time of {ONE} next to a busy process "
        f"(target at most {BUSY_TARGET}: {met[BUSY]})"
    )


@contextmanager
def busy_process() -> Iterator[subprocess.Popen[str]]:
    """A process that keeps one core busy during the block."""
    command = [sys.executable, "-S", "-c", _SPIN, str(os.getpid()), str(MAX_BUSY_SECONDS)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has started
            yield process
        finally:
            process.kill()


def _step_milliseconds(process: TimedProcess, steps: int) -> float:
    return 1e3 * process.seconds() / steps


def serve() -> None:
    """Runs in the worker process: serves timings of training steps on random images."""
    from favorit.bench.model_speed import step_call

    replies, request = open_replies(), read_request()
    work = step_call(ModelConfig(**request["model"]), request["batch"])
    serve_timings(work, sys.stdin, partial(write_reply, replies), request["steps"])


if __name__ == "__main__":
    serve()
