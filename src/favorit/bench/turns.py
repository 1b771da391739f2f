"""The side of a process that is timed in turns with others: it works once for each line that it reads, and answers with
the seconds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from favorit.bench.spread import WARMUP


def open_answers() -> TextIO:
    """Standard output, for answers alone: what libraries print goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def write_answer(answers: TextIO, value: Any) -> None:
    """Writes one answer, a line of JSON."""
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def answer_turns(work: Callable[[], Any], lines: Iterable[str], say: Callable[[Any], None], calls: int = 1) -> None:
    """Says "warm", then for each line the seconds of `calls` calls, after one that is not timed."""
    for _ in range(WARMUP):
        work()
    say("warm")
    for _ in lines:
        # What another process left in the caches, and its threads that are about to sleep, are not this one's cost.
        work()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        say(time.perf_counter() - start)
