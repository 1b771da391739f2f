"""The worker side of `timed_process`: runs the work for each line on standard input, and replies with its seconds.

Each reply is a line of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from favorit.bench.timing import WARMUP
from favorit.source import Source


def read_request() -> Any:
    """The request of the command line. Imports the files that come with it."""
    message = json.loads(sys.argv[1])
    for path in message["import"]:
        Source.read(path).load()
    return message["request"]


def open_replies() -> TextIO:
    """Standard output, reserved for replies: from now on, all other output goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def write_reply(replies: TextIO, value: Any) -> None:
    """Writes one line of JSON."""
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def serve_timings(work: Callable[[], Any], lines: Iterable[str], reply: Callable[[Any], None], calls: int = 1) -> None:
    """Replies "warm" after the warm-up, then for each line the seconds of `calls` calls."""
    for _ in range(WARMUP):
        work()
    reply("warm")
    for _ in lines:
        # One untimed call: the caches hold data of the previous process, and its threads may still spin.
        work()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        reply(time.perf_counter() - start)
