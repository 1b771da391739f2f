"""What one busy process costs a training step: one thread, all threads as favorit runs them, and all threads with
default spinning.

`python -m favorit.bench.busy JSON` is one of these contenders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from favorit.bench.alternate import Process
from favorit.bench.spread import Spread, spread
from favorit.bench.turns import answer_turns, open_answers, write_answer
from favorit.config import ModelConfig
from favorit.process import SPINNING, as_shipped, worker_settings

ONE, OURS, DEFAULT = "one thread", "favorit", "default spinning"
QUIET_TARGET = 1.03  # of the time with default spinning on a quiet machine, at most
BUSY_TARGET = 1.6  # of the time of one thread next to a busy process, at most
LONGEST = 600.0  # seconds after which a busy process ends in any case

# It ends when it is killed, when its parent is gone, or after a while.
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
    """Milliseconds of a step on a quiet machine and next to one busy process, with ratios to default spinning and to
    one thread.
    """

    name: str
    quiet: Spread
    busy: Spread
    to_default: float
    to_one_thread: float


def slowdowns(model: ModelConfig, batch: int, *, steps: int = 8, repeats: int = 5) -> list[Slowdown]:
    """Times of the three settings. Each has its own process; they take turns of `steps`, first quiet, then next to the
    busy process.
    """
    request = {"model": model.model_dump(mode="json"), "batch": batch, "steps": steps}
    quiet: dict[str, list[float]] = {name: [] for name in (ONE, OURS, DEFAULT)}
    busy: dict[str, list[float]] = {name: [] for name in quiet}
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(Process(request, variables, "favorit.bench.busy"))
            for name, variables in settings().items()
        }
        for process in processes.values():
            process.answer()
        for _ in range(repeats):
            _take_turns(processes, quiet, steps)
            with busy_process():
                _take_turns(processes, busy, steps)
    return compare(
        {name: spread(values) for name, values in quiet.items()},
        {name: spread(values) for name, values in busy.items()},
    )


def settings() -> dict[str, dict[str, str]]:
    """The environment of each contender. All of them keep large buffers: only threads and spinning differ."""
    ours = {**as_shipped(), **worker_settings()}
    return {
        ONE: {**ours, "OMP_NUM_THREADS": "1"},
        OURS: ours,
        DEFAULT: {name: value for name, value in ours.items() if name not in SPINNING},
    }


def compare(quiet: Mapping[str, Spread], busy: Mapping[str, Spread]) -> list[Slowdown]:
    """The ratios of medians."""
    default, one = quiet[DEFAULT].median, busy[ONE].median
    return [
        Slowdown(name, quiet[name], busy[name], quiet[name].median / default, busy[name].median / one) for name in quiet
    ]


def verdict(found: list[Slowdown]) -> str:
    """One sentence: favorit's ratios, the targets, and whether they are met."""
    ours = next(each for each in found if each.name == OURS)
    parts = [
        (f"quiet {ours.to_default:.2f}x of {DEFAULT}", ours.to_default, QUIET_TARGET),
        (f"next to a busy process {ours.to_one_thread:.2f}x of {ONE}", ours.to_one_thread, BUSY_TARGET),
    ]
    said = [
        f"{what} (target at most {target}: {'met' if ratio <= target else 'missed'})" for what, ratio, target in parts
    ]
    return f"{OURS}: {', '.join(said)}"


@contextmanager
def busy_process() -> Iterator[subprocess.Popen[str]]:
    """A process that keeps one core busy during the block."""
    command = [sys.executable, "-S", "-c", _SPIN, str(os.getpid()), str(LONGEST)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is running now
            yield process
        finally:
            process.kill()


def _take_turns(processes: Mapping[str, Process], milliseconds: Mapping[str, list[float]], steps: int) -> None:
    for name, process in processes.items():
        milliseconds[name].append(1e3 * process.seconds() / steps)


def serve(request: Mapping[str, Any]) -> None:
    """A contender: training steps of a model on random images."""
    from favorit.bench.models import step_call

    answers = open_answers()
    work = step_call(ModelConfig(**request["model"]), request["batch"])
    answer_turns(work, sys.stdin, partial(write_answer, answers), request["steps"])


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
