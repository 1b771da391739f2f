"""One contender in a process of its own: `python -m favorit.bench.contender JSON`.

The JSON names a comparison, its sizes and a side. `check` prints whether the sides agree and ends. `ours` and `theirs` say when they are
warm, and from then on, for each line that comes in, do their work once unmeasured and once measured and print the seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any, TextIO

import torch

from favorit.bench.comparison import Comparison, Sizes, agreement
from favorit.bench.peer_attention import ATTENTION
from favorit.bench.peer_models import STEP
from favorit.bench.recreation import HYBRID
from favorit.bench.spread import WARMUP

COMPARISONS: dict[str, Comparison] = {comparison.key: comparison for comparison in (*ATTENTION, *STEP, *HYBRID)}


def serve(request: dict[str, Any], lines: TextIO, answers: TextIO) -> None:
    """Answers one request, and the lines that come in after it."""

    def say(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    torch.manual_seed(0)
    comparison, sizes = COMPARISONS[request["comparison"]], Sizes(**request["sizes"])
    if request["side"] == "check":
        say(asdict(agreement(comparison, sizes, request["way"])))
        return
    contender = {"ours": comparison.ours, "theirs": comparison.theirs}[request["side"]]
    work = contender.work(contender.build(sizes).train(), sizes, request["way"])
    for _ in range(WARMUP):
        work()
    say("warm")
    for _ in lines:
        # What another process left in the caches, and its threads that are about to sleep, are not this one's cost.
        work()
        start = time.perf_counter()
        work()
        say(time.perf_counter() - start)


def main() -> None:
    """Answers go to standard output; whatever a library prints goes to the errors."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(json.loads(sys.argv[1]), sys.stdin, answers)


if __name__ == "__main__":
    main()
