"""The slowdown of a training step next to one busy process.

Three settings are compared: one thread, all threads as favorit runs them, and all threads with default spinning.
`python -m favorit.bench.busy JSON` is the worker process of one setting.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from favorit.bench.timed_process import TimedProcess
from favorit.bench.timing import Stats, describe
from favorit.bench.timing_worker import open_replies, read_request, serve_timings, write_reply
from favorit.config import ModelConfig
from favorit.process import SPINNING, default_environment, worker_settings

ONE, OURS, DEFAULT = "one thread", "favorit", "default spinning"
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

    `to_default` is the quiet time divided by that of default spinning. `to_one_thread` is the busy time divided by that
    of one thread.
    """

    name: str
    quiet: Stats
    busy: Stats
    to_default: float
    to_one_thread: float


def slowdowns(model: ModelConfig, batch: int, *, steps: int = 8, repeats: int = 5) -> list[Slowdown]:
    """The slowdown of each setting.

    Each setting has its own process. In each round, every process runs `steps` steps on the quiet machine, then every
    process runs `steps` steps next to the busy process.
    """
    request = {"model": model.model_dump(mode="json"), "batch": batch, "steps": steps}
    quiet: dict[str, list[float]] = {name: [] for name in (ONE, OURS, DEFAULT)}
    busy: dict[str, list[float]] = {name: [] for name in quiet}
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(TimedProcess("favorit.bench.busy", request, variables))
            for name, variables in settings().items()
        }
        for process in processes.values():
            process.reply()
        for _ in range(repeats):
            _time_round(processes, quiet, steps)
            with busy_process():
                _time_round(processes, busy, steps)
    return compare(
        {name: describe(values) for name, values in quiet.items()},
        {name: describe(values) for name, values in busy.items()},
    )


def settings() -> dict[str, dict[str, str]]:
    """The environment of each setting. All keep large buffers: only threads and spinning differ."""
    ours = {**default_environment(), **worker_settings()}
    return {
        ONE: {**ours, "OMP_NUM_THREADS": "1"},
        OURS: ours,
        DEFAULT: {name: value for name, value in ours.items() if name not in SPINNING},
    }


def compare(quiet: Mapping[str, Stats], busy: Mapping[str, Stats]) -> list[Slowdown]:
    """The slowdowns as ratios of medians."""
    default, one = quiet[DEFAULT].median, busy[ONE].median
    return [
        Slowdown(name, quiet[name], busy[name], quiet[name].median / default, busy[name].median / one) for name in quiet
    ]


def verdict(found: list[Slowdown]) -> str:
    """One sentence: favorit's ratios, the targets, and whether they are met."""
    ours = next(each for each in found if each.name == OURS)
    ratios = [
        (f"{ours.to_default:.2f}x the time of {DEFAULT} on a quiet machine", ours.to_default, QUIET_TARGET),
        (f"{ours.to_one_thread:.2f}x the time of {ONE} next to a busy process", ours.to_one_thread, BUSY_TARGET),
    ]
    parts = [
        f"{what} (target at most {target}: {'met' if ratio <= target else 'missed'})" for what, ratio, target in ratios
    ]
    return f"{OURS}: {', '.join(parts)}"


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


def _time_round(processes: Mapping[str, TimedProcess], milliseconds: Mapping[str, list[float]], steps: int) -> None:
    for name, process in processes.items():
        milliseconds[name].append(1e3 * process.seconds() / steps)


def serve() -> None:
    """Runs in the worker process: serves timings of training steps on random images."""
    from favorit.bench.model_speed import step_call

    replies, request = open_replies(), read_request()
    work = step_call(ModelConfig(**request["model"]), request["batch"])
    serve_timings(work, sys.stdin, partial(write_reply, replies), request["steps"])


if __name__ == "__main__":
    serve()
